from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from experiments.schedules import lr_factor
from gossip.errors import UsageError

SPECS = ["constant", "cosine", "step", "step:0.5", "step:0.3,0.6,0.9"]
TIMES = [i / 7 for i in range(0, 141)]  # 20 epochs


@pytest.mark.parametrize("spec", SPECS)
def test_without_warmup_it_starts_at_1_and_never_rises(spec: str) -> None:
    values = [lr_factor(spec, 20)(e) for e in TIMES]
    assert values[0] == 1
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("warmup", [0.5, 5])
def test_warmup_rises_linearly_from_0_to_the_full_rate(spec: str, warmup: float) -> None:
    factor = lr_factor(spec, 20, warmup)
    for share in (0, 0.1, 0.5, 0.9):
        assert factor(share * warmup) == pytest.approx(share)
    assert factor(warmup) == 1


@pytest.mark.parametrize("spec", SPECS)
def test_it_keeps_its_last_value_after_the_end(spec: str) -> None:
    factor = lr_factor(spec, 20, 2)
    assert factor(25) == factor(20)


@pytest.mark.parametrize("spec", SPECS)
def test_only_the_share_of_the_run_counts(spec: str) -> None:
    short, long = lr_factor(spec, 10, 1), lr_factor(spec, 300, 30)
    for tenth in range(11):
        assert short(tenth) == pytest.approx(long(30 * tenth), abs=1e-12)


def test_cosine_ends_at_0_and_is_half_way_in_the_middle() -> None:
    factor = lr_factor("cosine", 20, 4)
    assert factor(12) == pytest.approx(0.5)
    assert factor(20) == 0
    assert factor(16) == pytest.approx((1 + math.cos(0.75 * math.pi)) / 2)


@pytest.mark.parametrize("warmup", [0, 3])
def test_step_divides_by_ten_at_each_fraction(warmup: float) -> None:
    factor = lr_factor("step:0.5,0.75", 300, warmup)
    for e, expected in ((149.99, 1), (150, 0.1), (224.99, 0.1), (225, 0.01), (300, 0.01)):
        assert factor(e) == pytest.approx(expected)
    assert [lr_factor("step", 300, warmup)(e) for e in TIMES] == [factor(e) for e in TIMES]


def at_step(factor: Callable[[float], float], steps_per_epoch: int, step: int) -> float:
    return factor(step / steps_per_epoch)


@pytest.mark.parametrize("spec", SPECS)
def test_the_rate_at_an_epoch_does_not_depend_on_the_number_of_nodes(spec: str) -> None:
    rates = []
    for steps_per_epoch in (8, 4, 1):  # as with 1, 2 and 8 nodes
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        factor = lr_factor(spec, 12, 2)
        scheduler = LambdaLR(optimizer, partial(at_step, factor, steps_per_epoch))
        seen = []
        for step in range(12 * steps_per_epoch):
            if step % steps_per_epoch == 0:
                seen.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        rates.append(seen)
    assert rates[0] == rates[1] == rates[2]


@pytest.mark.parametrize(
    ("spec", "epochs", "warmup", "told"),
    [
        ("cosin", 10, 0, "did you mean 'cosine'"),
        ("", 10, 0, "There is: constant, cosine"),
        ("cosine:3", 10, 0, "no options"),
        ("step:", 10, 0, "rising fractions"),
        ("step:0.7,0.5", 10, 0, "rising fractions"),
        ("step:0.5,0.5", 10, 0, "rising fractions"),
        ("step:150,225", 300, 0, "rising fractions"),
        ("step:0", 10, 0, "rising fractions"),
        ("step:nan", 10, 0, "rising fractions"),
        ("step:half", 10, 0, "rising fractions"),
        ("cosine", 0, 0, "length above 0"),
        ("cosine", math.nan, 0, "length above 0"),
        ("cosine", 5, 5, "must be shorter"),
        ("cosine", 5, -1, "must be shorter"),
    ],
)
def test_bad_schedules_are_refused(spec: str, epochs: float, warmup: float, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        lr_factor(spec, epochs, warmup)
