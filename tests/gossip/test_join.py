"""What `join` and its session do where a user's own code fails, retries, or shares an optimizer."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossip
from gossip.errors import UsageError
from tests.training import Net, batches, flat, sgd


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    for x, y in batches(rank, steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


# -- finish -------------------------------------------------------------------------------------------------


def test_finish_beside_an_exception_waits_for_nobody() -> None:
    """Rank 1 fails when a part of its gradients has left, and rank 0 never comes to that step."""

    def fail(_: Tensor) -> None:
        raise ValueError("mine")

    def node() -> None:
        model = Net()
        session = gossip.join(model, sgd(model), algorithm="allreduce", bucket_mb=1e-4, timeout=1)
        try:
            if session.rank == 1:
                next(model.parameters()).register_hook(fail)
                learn(model, session._optimizer, 1, 1)
        finally:
            session.finish()

    with pytest.raises(ValueError, match="mine"):
        gossip.launch(node, 2)


def test_finish_beside_an_exception_detaches() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    session = gossip.join(model, optimizer, algorithm="dgc", progress="thread")
    with pytest.raises(ValueError, match="mine"):
        try:
            learn(model, optimizer, 0, 2)
            raise ValueError("mine")
        finally:
            session.finish()
    learn(model, optimizer, 0, 2)
    assert session.round == 2 and optimizer.param_groups[0]["momentum"] == 0.9
    gossip.join(model, optimizer).finish()


# -- steps that fail ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["dpsgd", "dcd", "allreduce", "dgc"])
def test_a_step_that_is_tried_again_is_a_step(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("torch.optim.sgd")  # torch.optim hides it
    plain = module.sgd

    def node(fails: bool) -> tuple[int, Tensor]:
        left = [fails]

        def update(*args: Any, **options: Any) -> None:
            if left[0]:
                left[0] = False
                raise MemoryError
            plain(*args, **options)

        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=algorithm)
        for x, y in batches(session.rank, 3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            monkeypatch.setattr(module, "sgd", update)
            try:
                optimizer.step()
            except MemoryError:
                optimizer.step()
        session.finish()
        return session.round, flat(model)

    expected = gossip.launch(node, 2, False)
    for (rounds, x), (_, y) in zip(gossip.launch(node, 2, True), expected, strict=True):
        assert rounds == 3 and torch.equal(x, y)


def test_a_step_that_was_refused_can_be_tried_again() -> None:
    def node() -> int:
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="dgc")
        (x, y), *_ = batches(session.rank, 1)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.param_groups[0]["momentum"] = 0.5
        with pytest.raises(UsageError, match="momentum was set"):
            optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.0
        optimizer.step()
        session.finish()
        return session.stats.take()["steps"]

    assert gossip.launch(node, 2) == [1, 1]


# -- who holds what -----------------------------------------------------------------------------------------


def test_an_optimizer_of_two_joined_models_is_told_of_at_most_once() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    both = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
    with pytest.warns(UserWarning, match="2 parameters in the optimizer are not in the model"):
        first = gossip.join(a, both)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = gossip.join(b, both)
    first.finish()
    second.finish()
    with pytest.warns(UserWarning, match="2 parameters in the optimizer are not in the model"):
        gossip.join(b, both).finish()  # the other session has ended


def test_a_frozen_parameter_that_one_rank_has_unfrozen_is_averaged_still() -> None:
    def node() -> Tensor:
        model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)])
        session = gossip.join(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
        model[1].requires_grad_(session.rank == 1)
        model[1].weight.data.fill_(float(session.rank))  # type: ignore[operator]
        return session.averaged_state_dict()["1.weight"]

    assert all(torch.equal(x, torch.full((2, 3), 0.5)) for x in gossip.launch(node, 2))


# -- what cannot join ---------------------------------------------------------------------------------------


def test_parameters_of_another_session_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = sgd(model)
    session = gossip.join(model, optimizer)
    for again in (nn.Sequential(model), model[0]):
        with pytest.raises(UsageError, match="belongs to another model that has joined"):
            gossip.join(again, optimizer)
    session.finish()
    gossip.join(nn.Sequential(model), optimizer).finish()


def test_two_parameters_in_one_memory_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].get_parameter("weight").data)
    with pytest.raises(UsageError, match=r"'0\.weight' and '1\.weight' share their memory"):
        gossip.join(model, sgd(model))
    model[1].weight = model[0].weight
    gossip.join(model, sgd(model)).finish()


@pytest.mark.parametrize(
    ("buffer", "text"),
    [
        (torch.zeros(1).expand(4), r"expanded.*clone\(\)"),
        (torch.eye(3).to_sparse(), "sparse.*plain attribute"),
    ],
)
def test_a_buffer_that_cannot_be_written_to_is_named_on_all_ranks(buffer: Tensor, text: str) -> None:
    def node() -> None:
        model = Net()
        model.register_buffer("graph", buffer)
        with pytest.raises(UsageError, match=f"buffer 'graph' is {text}"):
            gossip.join(model, sgd(model))

    gossip.launch(node, 2)
