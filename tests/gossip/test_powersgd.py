"""PowerSGD computes in float32, whatever the user's script computes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import gossip
from tests.training import Net, batches, flat, sgd


def trained(backward_inside: bool) -> list[Tensor]:
    """Every node's parameters. The forward pass is in bfloat16; backward inside of autocast, or behind it."""

    def node() -> Tensor:
        torch.manual_seed(0)
        model = Net().to(torch.float32)
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="powersgd:rank=1")
        for x, y in batches(session.rank, 4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x.to(torch.float32)), y)
                if backward_inside:
                    loss.backward()
            if not backward_inside:
                loss.backward()
            optimizer.step()
        session.finish()
        return flat(model)

    return gossip.launch(node, 3)


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    """Sets torch's default dtype until the test ends."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def test_backward_inside_of_autocast_does_not_reach_the_low_rank_step() -> None:
    assert all(map(torch.equal, trained(backward_inside=True), trained(backward_inside=False)))


def test_torchs_default_dtype_does_not_reach_the_state(
    default_dtype: Callable[[torch.dtype], None],
) -> None:
    def start() -> tuple[Tensor, ...]:
        model = nn.Linear(10, 12, dtype=torch.float32)
        session = gossip.join(model, sgd(model), algorithm="powersgd")
        state = session.algorithm_state()[0]
        session.finish()
        return state["q"], state["start"]

    expected = start()
    default_dtype(torch.float64)
    found = start()
    assert all(map(torch.equal, found, expected)) and all(q.dtype is torch.float32 for q in found)
