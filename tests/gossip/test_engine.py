"""The engine's laws: what users of an ordinary torch loop may rely on, for every kind of method."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import gossip
from gossip.algorithms import QSGD
from gossip.errors import (
    CheckpointError,
    DivergedError,
    PeerLostError,
    UsageError,
    WatchdogError,
)
from gossip.hooks import UNSTEPPED
from gossip.spec import make_topology
from tests.training import Net, backward_in_parts, batches, flat, sgd, train

METHODS = ["local", "allreduce", "dpsgd", "dcd", "ecd", "choco", "deepsqueeze", "naive"]
PARAMETER_METHODS = [m for m in METHODS if m != "allreduce"]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def run(n: int, **options: Any) -> list[Tensor]:
    return [x for x, _ in gossip.launch(lambda: train(**options), n)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_repeats_itself(algorithm: str) -> None:
    assert equal(
        run(3, algorithm=algorithm, compressor="qsgd"), run(3, algorithm=algorithm, compressor="qsgd")
    )


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("other", [{"overlap": False}, {"bucket_mb": 1e-4}, {"progress": "thread"}])
def test_when_and_in_what_pieces_messages_travel_changes_nothing(
    algorithm: str, other: dict[str, Any]
) -> None:
    base = run(3, algorithm=algorithm)
    assert not equal(base, run(3, algorithm=algorithm, steps=7))
    assert equal(base, run(3, algorithm=algorithm, **other))


@pytest.mark.parametrize("algorithm", METHODS)
def test_one_node_is_plain_training(algorithm: str) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = sgd(model)
    for x, y in batches(0, 8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(run(1, algorithm=algorithm)[0], flat(model), rtol=1e-5, atol=1e-6)
    if algorithm in ("local", "allreduce", "dpsgd", "naive", "choco"):
        assert torch.equal(run(1, algorithm=algorithm)[0], flat(model))


def test_join_makes_all_ranks_equal_to_rank_0() -> None:
    def start() -> tuple[Tensor, Tensor]:
        torch.manual_seed(gossip.world().rank)
        model = Net()
        model.bn.get_buffer("running_mean").fill_(gossip.world().rank)
        model.hidden.weight.requires_grad_(False)
        gossip.join(model, sgd(model)).finish()
        return flat(model), model.bn.get_buffer("running_mean").clone()

    torch.manual_seed(0)
    expected = flat(Net())
    for x, mean in gossip.launch(start, 3):
        assert torch.equal(x, expected)
        assert torch.equal(mean, torch.zeros(4))


def test_gradients_are_final_when_backward_returns() -> None:
    """With all-reduce every rank sees the mean gradient, so that clipping is the same everywhere."""

    def gradients() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = Net()
        plain = copy.deepcopy(model)
        optimizer = sgd(model)
        node = gossip.join(model, optimizer, algorithm="allreduce", bucket_mb=1e-4)
        x, y = batches(node.rank, 1)[0]
        nn.functional.cross_entropy(model(x), y).backward()
        nn.functional.cross_entropy(plain(x), y).backward()
        final = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        own = torch.cat([p.grad.reshape(-1) for p in plain.parameters() if p.grad is not None])
        optimizer.step()
        node.finish()
        return final, own

    results = gossip.launch(gradients, 4)
    mean = torch.stack([own for _, own in results]).mean(0)
    for final, _ in results:
        torch.testing.assert_close(final, mean)
        assert torch.equal(final, results[0][0])


def accumulate(algorithm: str, parts: int) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = sgd(model)
    node = gossip.join(model, optimizer, algorithm=algorithm)
    for x, y in batches(node.rank, 4):
        optimizer.zero_grad()
        backward_in_parts(node, model, x, y, parts)
        optimizer.step()
    node.finish()
    return flat(model)


@pytest.mark.parametrize("algorithm", METHODS)
def test_accumulated_parts_equal_one_batch(algorithm: str) -> None:
    for whole, parts in zip(
        gossip.launch(accumulate, 3, algorithm, 1), gossip.launch(accumulate, 3, algorithm, 3), strict=True
    ):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


def test_a_second_synced_backward_is_an_error_that_names_no_sync() -> None:
    def twice() -> None:
        model = Net()
        node = gossip.join(model, sgd(model), algorithm="allreduce")
        for x, y in batches(node.rank, 2):
            nn.functional.cross_entropy(model(x), y).backward()

    with pytest.raises(UsageError, match=r"node\.no_sync"):
        gossip.launch(twice, 2)


class Branches(nn.Module):
    """Rank 1 does not use `b`; nobody uses `c`; `tied` is `a` again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.a.weight
        self.frozen = nn.Linear(16, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.tied(torch.tanh(self.a(x.flatten(1)))))
        if gossip.world().rank != 1:
            h = h + self.b(h)
        return self.frozen(h)


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("overlap", [True, False])
def test_unused_tied_and_frozen_parameters(algorithm: str, overlap: bool) -> None:
    results = gossip.launch(lambda: train(algorithm=algorithm, model=Branches(), overlap=overlap), 3)
    if algorithm == "allreduce":
        assert all(torch.equal(x, results[0][0]) for x, _ in results)
    frozen = [x[-51:] for x, _ in results]
    assert all(torch.equal(f, frozen[0]) for f in frozen)


@pytest.mark.parametrize("algorithm", ["allreduce", "dcd"])
def test_channels_last_survives(algorithm: str) -> None:
    def layout() -> tuple[Tensor, bool]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 4), nn.Flatten())
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x, _ = train(algorithm=algorithm, model=model)
        return x, model[1].weight.is_contiguous(memory_format=torch.channels_last)

    assert all(kept for _, kept in gossip.launch(layout, 2))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def groups(model: nn.Module) -> torch.optim.Optimizer:
    out: dict[str, Any] = {"params": model.get_submodule("out").parameters(), "lr": 0.2}
    hidden: dict[str, Any] = {"params": model.get_submodule("hidden").parameters()}
    return torch.optim.SGD([out, hidden], lr=0.1, nesterov=True, momentum=0.9)


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("make", [adamw, groups])
def test_any_optimizer(algorithm: str, make: Any) -> None:
    assert all(x.isfinite().all() for x in run(3, algorithm=algorithm, make_optimizer=make))


def train_by_closures(
    make: Callable[[nn.Module], torch.optim.Optimizer], algorithm: str, overlap: bool, keyword: bool
) -> tuple[Tensor, gossip.Session]:
    """What `train` does, but the optimizer itself asks for the gradients."""
    torch.manual_seed(gossip.world().rank)
    model = Net()
    optimizer = make(model)
    node = gossip.join(model, optimizer, algorithm=algorithm, overlap=overlap)
    for x, y in batches(node.rank, 8):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        step: Any = optimizer.step
        loss = step(closure=closure) if keyword else step(closure)
        assert loss.requires_grad  # what the closure returns comes back
    node.finish()
    return flat(model), node


@pytest.mark.parametrize("algorithm", [*METHODS, "qsgd", "plump"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_with_a_closure_is_a_step(algorithm: str, overlap: bool) -> None:
    base = run(3, algorithm=algorithm, overlap=overlap)
    for keyword in (False, True):
        results = gossip.launch(train_by_closures, 3, sgd, algorithm, overlap, keyword)
        assert [node.round for _, node in results] == [8, 8, 8]
        assert equal(base, [x for x, _ in results])


def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)


@pytest.mark.parametrize("algorithm", PARAMETER_METHODS)
def test_an_optimizer_may_evaluate_its_closure_several_times(algorithm: str) -> None:
    results = gossip.launch(train_by_closures, 3, lbfgs, algorithm, True, False)
    assert [node.round for _, node in results] == [8, 8, 8]
    late = gossip.launch(train_by_closures, 3, lbfgs, algorithm, False, False)
    assert equal([x for x, _ in results], [x for x, _ in late])


@pytest.mark.parametrize("algorithm", ["allreduce", "qsgd"])
def test_but_not_where_every_gradient_is_exchanged(algorithm: str) -> None:
    with pytest.raises(UsageError, match="LBFGS"):
        gossip.launch(train_by_closures, 3, lbfgs, algorithm, True, False)


@pytest.mark.parametrize("algorithm", ["dpsgd", "allreduce"])
def test_a_closure_that_fails_leaves_no_trace(algorithm: str) -> None:
    """A loop that catches what its closure raises before backward goes on as if it had not been tried."""

    def fails(node: gossip.Session, model: nn.Module) -> None:
        optimizer: Any = node._optimizer

        def closure() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure)

    assert equal(run(2, algorithm=algorithm), run(2, algorithm=algorithm, before_step=fails))


def test_a_closure_without_backward_is_refused_where_gradients_are_exchanged() -> None:
    def forgets() -> None:
        model = Net()
        optimizer: Any = sgd(model)
        gossip.join(model, optimizer, algorithm="allreduce")
        optimizer.step(lambda: model(batches(0, 1)[0][0]).sum())

    with pytest.raises(UsageError, match=r"has not called backward\(\)"):
        gossip.launch(forgets, 2)


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize("steps", [3, UNSTEPPED + 3])
def test_a_loop_that_steps_another_optimizer_is_told(steps: int) -> None:
    def mistaken() -> None:
        model = Net()
        node = gossip.join(model, sgd(model))
        other = sgd(model)
        for x, y in batches(node.rank, steps):
            nn.functional.cross_entropy(model(x), y).backward()
            other.step()
        node.finish()

    with pytest.warns(UserWarning, match="has not made a step") as warned:
        gossip.launch(mistaken, 2)
    assert len(warned) == 1


@pytest.mark.parametrize("algorithm", METHODS)
def test_evaluation_in_inference_mode_leaves_nothing_behind(algorithm: str) -> None:
    def evaluate(node: gossip.Session, model: nn.Module) -> None:
        with torch.inference_mode():
            node.consensus_distance()
            node.averaged_state_dict()

    assert equal(run(3, algorithm=algorithm), run(3, algorithm=algorithm, before_step=evaluate))


@pytest.mark.parametrize("algorithm", [*METHODS, "p3"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_model_may_be_compiled_after_join(algorithm: str, whole: bool) -> None:
    """And so may the optimizer's step. On one node: threads do not compile side by side."""

    def compiled() -> tuple[Tensor, int]:
        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        node = gossip.join(model, optimizer, algorithm=algorithm)
        fast = torch.compile(model, backend="eager")
        step = torch.compile(optimizer.step, backend="eager") if whole else optimizer.step
        for x, y in batches(node.rank, 8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            step()
        node.finish()
        return flat(model), node.round

    assert gossip.launch(compiled, 1)[0][1] == 8
    assert torch.equal(gossip.launch(compiled, 1)[0][0], run(1, algorithm=algorithm)[0])


@pytest.mark.parametrize("algorithm", METHODS)
def test_models_can_be_copied_and_pickled(algorithm: str) -> None:
    def copies(node: gossip.Session, model: nn.Module) -> None:
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        averaged = torch.optim.swa_utils.AveragedModel(model)
        round_before = node.round
        for other in (twin, averaged):
            nn.functional.cross_entropy(other(batches(0, 1)[0][0]), batches(0, 1)[0][1]).backward()
        assert node.round == round_before

    assert equal(run(2, algorithm=algorithm), run(2, algorithm=algorithm, before_step=copies))


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("half", lambda m: m.half()),
        ("assign", lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True)),
    ],
)
def test_detached_parameters_are_noticed(name: str, move: Any) -> None:
    def detach() -> None:
        model = Net()
        optimizer = sgd(model)
        gossip.join(model, optimizer)
        move(model)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()

    with pytest.raises(UsageError, match="moved after join"):
        gossip.launch(detach, 2)


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_parameter_that_is_unfrozen_later_is_noticed(algorithm: str) -> None:
    def unfreeze() -> None:
        model = Net()
        model.hidden.weight.requires_grad_(False)
        optimizer = sgd(model)
        gossip.join(model, optimizer, algorithm=algorithm)
        model.hidden.weight.requires_grad_(True)
        nn.functional.cross_entropy(model(batches(0, 1)[0][0]), batches(0, 1)[0][1]).backward()
        optimizer.step()

    with pytest.raises(UsageError, match=r"'hidden\.weight' was frozen"):
        gossip.launch(unfreeze, 2)


def test_changed_optimizer_is_noticed() -> None:
    def add() -> None:
        model = Net()
        optimizer = sgd(model)
        gossip.join(model, optimizer)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        optimizer.step()

    with pytest.raises(UsageError, match="changed after join"):
        gossip.launch(add, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_refused_at_join(dtype: torch.dtype) -> None:
    model = Net().to(dtype)
    with pytest.raises(UsageError, match=r"autocast"):
        gossip.join(model, sgd(model))


def test_a_model_without_parameters_or_a_foreign_optimizer_is_refused() -> None:
    with pytest.raises(UsageError, match="holds none"):
        gossip.join(Net(), sgd(Net()))
    frozen = Net()
    optimizer = sgd(frozen)
    frozen.requires_grad_(False)
    with pytest.raises(UsageError):
        gossip.join(frozen, optimizer)


@pytest.mark.parametrize("algorithm", PARAMETER_METHODS)
def test_local_steps_and_changes_outside_step_are_part_of_the_update(algorithm: str) -> None:
    """every=2 over two plain steps equals one round whose update is both; `every` divides the rounds."""
    results = gossip.launch(lambda: train(steps=6, algorithm=f"{algorithm}:every=3"), 2)
    assert [node.round for _, node in results] == [2, 2]

    def shrink(node: gossip.Session, model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.5)

    assert not equal(run(2, algorithm=algorithm), run(2, algorithm=algorithm, before_step=shrink))
    assert equal(
        run(2, algorithm=algorithm, before_step=shrink),
        run(2, algorithm=algorithm, before_step=shrink, overlap=False),
    )


@pytest.mark.parametrize("algorithm", METHODS)
def test_evaluation_does_not_take_part(algorithm: str) -> None:
    def evaluate(node: gossip.Session, model: nn.Module) -> None:
        model.eval()
        model(batches(0, 1)[0][0])
        model.train()
        with torch.no_grad():
            model.get_submodule("out")(torch.zeros(1, 8))

    assert equal(run(3, algorithm=algorithm), run(3, algorithm=algorithm, before_step=evaluate))


@pytest.mark.parametrize("algorithm", PARAMETER_METHODS)
def test_a_skipped_step_keeps_the_ranks_together(algorithm: str) -> None:
    def skip() -> int:
        model = Net()
        optimizer = sgd(model)
        node = gossip.join(model, optimizer, algorithm=algorithm)
        for step, (x, y) in enumerate(batches(node.rank, 4)):
            nn.functional.cross_entropy(model(x), y).backward()
            if step == 2 and node.rank == 1:
                node.skip()
            else:
                optimizer.step()
        node.finish()
        return node.round

    assert gossip.launch(skip, 3) == [4, 4, 4]


@pytest.mark.parametrize("algorithm", ["dcd", "allreduce", "dgc"])
def test_states_of_different_rounds_are_refused(algorithm: str) -> None:
    def node() -> None:
        states = []
        for steps in (2, 3):
            model = Net()
            optimizer = sgd(model)
            session = gossip.join(model, optimizer, algorithm=algorithm)
            for x, y in batches(session.rank, steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            states.append(session.state_dict())
            session.finish()
        model = Net()
        session = gossip.join(model, sgd(model), algorithm=algorithm)
        with pytest.raises(CheckpointError, match="'lanes' is missing"):
            session.load_state_dict({k: v for k, v in states[0].items() if k != "lanes"})
        session.load_state_dict(states[session.rank])

    with pytest.raises(CheckpointError, match=r"of different rounds \(2, 3\)"):
        gossip.launch(node, 2)


def test_no_backward_may_follow_the_one_that_was_exchanged() -> None:
    def node() -> None:
        model = Net()
        session = gossip.join(model, sgd(model), algorithm="allreduce")
        (x, y), *_ = batches(session.rank, 1)
        nn.functional.cross_entropy(model(x), y).backward()
        with session.no_sync():
            nn.functional.cross_entropy(model(x), y).backward()

    with pytest.raises(UsageError, match="put all but the last under"):
        gossip.launch(node, 2)


def test_parameters_are_frozen_before_join() -> None:
    def node() -> None:
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="allreduce")
        for step, (x, y) in enumerate(batches(session.rank, 3)):
            model.hidden.weight.requires_grad_(step < 1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    with pytest.raises(UsageError, match=r"'hidden\.weight' was frozen after join"):
        gossip.launch(node, 2)


GRADIENT_METHODS = ["allreduce", "qsgd:ef=true", "dgc:ratio=0.1,warmup_steps=0", "p3"]


@pytest.mark.parametrize("algorithm", GRADIENT_METHODS)
def test_gradient_methods_skip_together_or_not_at_all(algorithm: str) -> None:
    def some_skip(skips: Callable[[int], bool]) -> Tensor:
        model = Net()
        optimizer = sgd(model)
        node = gossip.join(model, optimizer, algorithm=algorithm)
        for step, (x, y) in enumerate(batches(node.rank, 6)):
            nn.functional.cross_entropy(model(x), y).backward()
            node.skip() if step == 2 and skips(node.rank) else optimizer.step()
        node.finish()
        return flat(model)

    together = gossip.launch(some_skip, 3, lambda rank: True)
    assert all(torch.equal(x, together[0]) for x in together)
    with pytest.raises(UsageError, match=r"has made step 3, for which rank 1 called node\.skip"):
        gossip.launch(some_skip, 3, lambda rank: rank == 1)


def test_a_step_skipped_before_backward_sends_no_old_gradient() -> None:
    """Of what was contributed in three steps all is applied, or in v, or was sent in the skipped one."""

    def node() -> tuple[Tensor, Tensor]:
        model = nn.Linear(3, 2, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        torch.nn.init.zeros_(model.weight)  # so that whole numbers can be added to it without rounding
        session = gossip.join(model, optimizer, algorithm="gradient-dropping:ratio=0.4,threshold=exact")
        for step in range(4):
            if step == 2:
                session.skip()
                continue
            optimizer.zero_grad()
            (model.weight * torch.arange(6.0).view(2, 3)).sum().backward()
            optimizer.step()
        (state,) = session.algorithm_state()
        session.finish()
        return -flat(model), state["v"]

    skipped = torch.tensor([0.0, 0.0, 4.0, 0.0, 4.0, 0.0])  # the two largest of what was left then
    for moved, v in gossip.launch(node, 2):
        assert torch.equal(moved + v + skipped, 3 * torch.arange(6.0))


@pytest.mark.parametrize("algorithm", ["dpsgd", "dcd", "choco", "allreduce"])
def test_uneven_steps_name_the_rank_that_left(algorithm: str) -> None:
    def uneven() -> None:
        train(steps=3 if gossip.world().rank == 2 else 5, algorithm=algorithm)

    with pytest.raises(PeerLostError, match=r"rank 2, which has (finished after round 3|left)"):
        gossip.launch(uneven, 4)


def test_the_watchdog_names_whom_it_waits_for() -> None:
    def slow() -> None:
        model = Net()
        optimizer = sgd(model)
        node = gossip.join(model, optimizer, timeout=0.2)
        if node.rank == 1:
            start = time.monotonic()
            node.world.wait(lambda: _later(node, start), 60)
        nn.functional.cross_entropy(model(batches(0, 1)[0][0]), batches(0, 1)[0][1]).backward()
        optimizer.step()

    def _later(node: gossip.Session, start: float) -> bool:
        node.world.note("alive", time.monotonic())  # not a deadlock: something keeps happening
        return time.monotonic() - start > 5

    with pytest.raises(
        WatchdogError, match=r"rank 0, round 1, bucket 0: .*rank 1 \(last heard from in round 0\)"
    ):
        gossip.launch(slow, 2)


def test_a_failing_rank_ends_all() -> None:
    def fail() -> None:
        if gossip.world().rank == 1:
            raise KeyError("mine")
        train(algorithm="dcd")

    with pytest.raises(KeyError, match="mine"):
        gossip.launch(fail, 3)


@pytest.mark.parametrize("algorithm", PARAMETER_METHODS)
@pytest.mark.parametrize("compressor", ["identity", "qsgd", "topk:0.5"])
def test_divergence_names_rank_and_round(algorithm: str, compressor: str) -> None:
    def poison(node: gossip.Session, model: nn.Module) -> None:
        if node.rank == 1 and node.round == 3:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    with pytest.raises(DivergedError, match="rank 1, round 4, bucket 0") as caught:
        run(3, algorithm=algorithm, compressor=compressor, before_step=poison)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("algorithm", [{"algorithm": "dcd"}, {"algorithm": "dpsgd"}]),
        ("compressor", [{"compressor": "qsgd"}, {"compressor": "qsgd:bits=4"}]),
        ("topology", [{"topology": "regular:d=2,seed=1"}, {"topology": "star"}]),
        ("seed", [{"seed": 1}, {"seed": 2}]),
    ],
)
def test_disagreement_is_found_at_the_start(field: str, options: list[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=f"disagree on {field}") as caught:
        gossip.launch(lambda: train(**options[gossip.world().rank == 3]), 4)
    assert "ranks 0 to 2: " in str(caught.value)
    assert "; rank 3: " in str(caught.value)


def freeze_one(model: nn.Module, rank: int) -> None:
    model.register_parameter("extra", nn.Parameter(torch.zeros(2 + rank), requires_grad=False))


def buffer_of_a_length(model: nn.Module, rank: int) -> None:
    model.register_buffer("extra", torch.zeros(2 + rank))


def buffer_of_a_dtype(model: nn.Module, rank: int) -> None:
    model.register_buffer("extra", torch.zeros(2, dtype=torch.float64 if rank else torch.float32))


def parameter_of_a_length(model: nn.Module, rank: int) -> None:
    model.register_parameter("extra", nn.Parameter(torch.zeros(2 + rank)))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (parameter_of_a_length, "parameters"),
        (freeze_one, "frozen parameters"),
        (buffer_of_a_length, "buffers"),
        (buffer_of_a_dtype, "buffers"),
    ],
)
def test_different_models_are_found_at_the_start(change: Any, field: str) -> None:
    def two() -> None:
        model = Net()
        change(model, gossip.world().rank)
        train(model=model)

    with pytest.raises(UsageError, match=rf"disagree on {field} \(rank 0: \('extra'.*; rank 1: \('extra'"):
        gossip.launch(two, 2)


def test_a_layer_that_only_one_rank_has_frozen_is_named() -> None:
    def one_freezes() -> None:
        model = Net()
        model.hidden.weight.requires_grad_(gossip.world().rank != 1)
        train(model=model)

    with pytest.raises(
        UsageError, match=r"parameters \(ranks 0, 2: \('hidden.weight'.*; rank 1: \('bn.bias'"
    ):
        gossip.launch(one_freezes, 3)


@pytest.mark.parametrize("algorithm", METHODS)
def test_bytes_and_messages_are_counted(algorithm: str) -> None:
    n, steps = 4, 6
    for x, node in gossip.launch(lambda: train(steps, algorithm=algorithm, compressor="qsgd"), n):
        interval = node.stats.take()
        assert interval["steps"] == steps == len(interval["encode_ms"])
        d = x.numel()
        if algorithm == "local":
            expected = 0
        elif algorithm == "allreduce":
            expected = steps * (2 * (n - 1) * 4 * d // n)
            assert node.allreduce_bytes * steps == expected
        elif algorithm == "dpsgd":
            expected = steps * 2 * 4 * d
        else:
            expected = steps * 2 * node.compressor.max_bytes(d)
        assert interval["bytes_sent"] == expected
        assert node.stats.take()["bytes_sent"] == 0


def test_consensus_distance_and_averaged_model() -> None:
    def measure() -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
        torch.manual_seed(0)
        model = Net()
        node = gossip.join(model, sgd(model), algorithm="local")
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(node.rank)))
        model.bn.get_buffer("running_mean").fill_(node.rank)
        mine = flat(model)
        state = node.averaged_state_dict()
        local = node.averaged_state_dict(buffers="local")
        other = Net()
        other.load_state_dict(state)
        distance = node.consensus_distance()
        assert torch.equal(flat(model), mine)
        node.finish()
        return mine, flat(other), distance, state["bn.running_mean"], local["bn.running_mean"]

    results = gossip.launch(measure, 3)
    stack = torch.stack([r[0] for r in results]).double()
    mean = stack.mean(0)
    distance = float((stack - mean).square().sum(1).mean().sqrt())
    for rank, (_, averaged, measured, bn, local) in enumerate(results):
        torch.testing.assert_close(averaged.double(), mean, rtol=1e-5, atol=1e-6)
        assert measured == pytest.approx(distance, rel=1e-5)
        assert torch.equal(bn, torch.ones(4))
        assert torch.equal(local, torch.full((4,), float(rank)))


def test_finish_detaches() -> None:
    def detached() -> bool:
        model = Net()
        optimizer = sgd(model)
        node = gossip.join(model, optimizer)
        node.finish()
        before = node.round
        if node.rank == 0:  # alone: would hang if it were still attached
            nn.functional.cross_entropy(model(batches(0, 1)[0][0]), batches(0, 1)[0][1]).backward()
            optimizer.step()
        return node.round == before

    assert all(gossip.launch(detached, 2))


def test_two_models_side_by_side() -> None:
    """Each join has its own tags and channels, so their messages do not mix."""

    def both() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        a, b = nn.Linear(4, 2), nn.Linear(4, 2)
        opt_a, opt_b = sgd(a), sgd(b)
        node_a = gossip.join(a, opt_a, algorithm="dcd")
        node_b = gossip.join(b, opt_b, algorithm="allreduce")
        for x in torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(node_a.rank)):
            for model, optimizer in ((a, opt_a), (b, opt_b)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        node_a.finish()
        node_b.finish()
        sent = [node.stats.take()["bytes_sent"] for node in (node_a, node_b)]
        assert sent == [5 * 2 * 4 * 10, 5 * (2 * 2 * 4 * 10 // 3)]  # each session's own
        assert sum(sent) == node_a.world.bytes_sent
        c = nn.Linear(4, 2)
        node_c = gossip.join(c, sgd(c))
        node_c.finish()
        assert node_c.stats.take()["bytes_sent"] == 0
        return flat(a), flat(b)

    results = gossip.launch(both, 3)
    assert all(torch.equal(b, results[0][1]) for _, b in results)
    assert not torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("algorithm", {"algorithm": "choco"}),
        ("compressor", {"compressor": "qsgd:bits=4"}),
        ("topology", {"topology": "complete"}),
        ("seed", {"seed": 1}),
    ],
)
def test_a_state_of_another_run_is_refused(field: str, options: dict[str, Any]) -> None:
    base: dict[str, Any] = {"algorithm": "dcd", "compressor": "qsgd:bits=8", "topology": "ring"}

    def load() -> None:
        model = Net()
        state = gossip.join(model, sgd(model), **base).state_dict()
        other = Net()
        gossip.join(other, sgd(other), **{**base, **options}).load_state_dict(state)

    with pytest.raises(CheckpointError, match=f"written with {field} = "):
        gossip.launch(load, 4)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("layout", lambda: Net().to(memory_format=torch.channels_last)),  # type: ignore[call-overload]
        ("optimizer", lambda: Net()),
    ],
)
def test_a_state_of_another_layout_or_momentum_is_refused(field: str, other: Callable[[], nn.Module]) -> None:
    def load() -> None:
        model, changed = Net(), other()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state = gossip.join(model, optimizer, algorithm="dgc").state_dict()
        momentum = 0.9 if field == "layout" else 0.0
        optimizer = torch.optim.SGD(changed.parameters(), lr=0.1, momentum=momentum)
        gossip.join(changed, optimizer, algorithm="dgc").load_state_dict(state)

    with pytest.raises(CheckpointError, match=f"written with {field} = "):
        gossip.launch(load, 2)


def test_a_join_that_fails_gives_the_optimizer_its_momentum_back() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(UsageError):
        gossip.join(model, optimizer, algorithm="dgc", trace=Path(__file__) / "trace.json")
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_options_of_objects_are_checked_too() -> None:
    model = Net()
    with pytest.raises(UsageError, match="choose 'auto' or 'all' or 'scatter'"):
        gossip.join(model, sgd(model), algorithm=QSGD(gather="scater"))  # type: ignore[arg-type]


def test_a_sparse_gradient_is_refused_by_name() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    node = gossip.join(model, sgd(model), algorithm="allreduce")
    with pytest.raises(UsageError, match="'weight' is sparse"):
        model(torch.tensor([1])).sum().backward()
        node.wait()


def test_a_graph_that_is_not_used_is_told() -> None:
    def join() -> None:
        model = Net()
        gossip.join(model, sgd(model), algorithm="allreduce", topology="complete")

    with pytest.warns(UserWarning, match="allreduce does not use a graph: complete is ignored"):
        gossip.launch(join, 2)


def test_a_matrix_whose_columns_do_not_sum_to_1_is_told() -> None:
    W = np.array([[0.5, 0.5], [0.2, 0.8]])

    def join() -> None:
        model = Net()
        gossip.join(model, sgd(model), algorithm="dpsgd", topology=make_topology(W, 2))

    with pytest.warns(UserWarning, match="weighted mean"):
        gossip.launch(join, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket_mb": float("nan")}, "bucket_mb"),
        ({"bucket_mb": 0}, "bucket_mb"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"device": "foo"}, "choose cpu, cuda"),
        ({"device": "meta"}, "choose cpu, cuda"),
        ({"seed": 1.5}, "whole number"),
        ({"progress": "magic"}, "'hooks' or 'thread'"),
    ],
)
def test_bad_options_are_refused_at_join(options: dict[str, Any], said: str) -> None:
    model = Net()
    with pytest.raises(UsageError, match=said):
        gossip.join(model, sgd(model), **options)


def test_joining_twice_is_refused_until_the_session_has_finished() -> None:
    model = Net()
    node = gossip.join(model, sgd(model))
    with pytest.raises(UsageError, match="joined already"):
        gossip.join(model, sgd(model))
    node.finish()
    gossip.join(model, sgd(model)).finish()


def test_a_compressor_that_is_not_used_is_said() -> None:
    model = Net()
    with pytest.warns(UserWarning, match="dpsgd does not use a compressor"):
        gossip.join(model, sgd(model), algorithm="dpsgd", compressor="qsgd").finish()


def shares(seed: int, n: int = 3) -> list[list[int]]:
    """What the ranks' loops see of 32 samples in an epoch."""

    def node() -> list[int]:
        model = nn.Linear(1, 1)
        session = gossip.join(model, torch.optim.SGD(model.parameters(), lr=0.1), seed=seed)
        data = TensorDataset(torch.arange(32))
        seen = [i for (batch,) in session.shard(data, batch_size=4) for i in batch.tolist()]
        session.finish()
        return seen

    return gossip.launch(node, n)


def test_the_ranks_shards_share_a_data_set() -> None:
    assert sorted(i for seen in shares(0) for i in seen) == list(range(32))


def test_the_seed_of_join_deals_the_samples() -> None:
    assert shares(1) == shares(1) != shares(2)


def test_a_state_of_another_rank_is_refused() -> None:
    def load() -> None:
        model = Net()
        session = gossip.join(model, sgd(model), algorithm="dcd")
        states = session.world.allgather(session.state_dict())
        session.finish()
        other = Net()
        gossip.join(other, sgd(other), algorithm="dcd").load_state_dict(states[1 - session.rank])

    with pytest.raises(CheckpointError, match="written with rank = "):
        gossip.launch(load, 2)


def test_ranks_with_other_buckets_are_found_at_the_start() -> None:
    with pytest.raises(UsageError, match="disagree on buckets"):
        gossip.launch(lambda: train(1, bucket_mb=1e-4 if gossip.world().rank else 1.0), 2)
