"""What goes wrong in users' loops without an error in torch: it is told, or it works."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossip
from gossip.algorithms import ALGORITHMS
from gossip.hooks import UNSTEPPED
from tests.training import Net, batches, sgd

PARAMETER = sorted(name for name, method in ALGORITHMS.items() if method.kind == "parameter")
GRADIENT = sorted(name for name, method in ALGORITHMS.items() if method.kind == "gradient")


def told(node: Callable[[], Any], n: int = 2) -> list[str]:
    """The warnings of `n` virtual nodes, doubts about the method aside."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        gossip.launch(node, n)
    return [str(w.message) for w in caught if "optimizer" in str(w.message) or "loaded" in str(w.message)]


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, steps: int = 1) -> None:
    for x, y in batches(rank, steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


# -- optimizers ---------------------------------------------------------------------------------------------


def test_a_later_optimizer_is_told_of_once() -> None:
    def node() -> None:
        model = Net()
        first = sgd(model)
        session = gossip.join(model, first)
        learn(model, first, session.rank)
        learn(model, sgd(model), session.rank, 2 * UNSTEPPED)
        session.finish()

    (text,) = told(node)
    assert f"{UNSTEPPED} backward passes, and the optimizer given to join has not made a step since" in text


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("spec", ["p3", "qsgd", "allreduce", "dpsgd"])
def test_a_second_optimizer_trains_what_the_first_does_not_hold(spec: str, overlap: bool) -> None:
    def node() -> Tensor:
        torch.manual_seed(1)
        body, head = nn.Linear(6, 5), nn.Linear(5, 4)
        model = nn.Sequential(body, head)
        before = head.weight.detach().clone()
        first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (body, head))
        options = {"order": "priority"} if spec == "qsgd" else {}
        session = gossip.join(model, first, algorithm=spec, overlap=overlap, **options)  # type: ignore[arg-type]
        for step in range(3):
            first.zero_grad()
            second.zero_grad()
            x = torch.full((2, 6), float(step + session.rank))
            model(x).square().sum().backward()
            first.step()
            second.step()
        session.finish()
        return head.weight.detach() - before

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moved = gossip.launch(node, 2)
    assert all(float(each.abs().max()) > 1e-3 for each in moved)
    assert spec == "dpsgd" or torch.equal(*moved)


def test_parameters_that_only_the_model_or_the_optimizer_has_are_told() -> None:
    def node(only: str) -> None:
        model, criterion = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), nn.Linear(2, 2)
        held = {
            "model": list(model[1].parameters()),
            "optimizer": [*model.parameters(), *criterion.parameters()],
            "neither": list(model.parameters()),
        }[only]
        gossip.join(model, torch.optim.SGD(held, lr=0.1)).finish()

    (left,) = told(lambda: node("model"))
    assert left.startswith("2 trainable parameters (0.bias, …) are not in the optimizer given to join")
    (alone,) = told(lambda: node("optimizer"))
    assert alone.startswith("2 parameters in the optimizer are not in the model given to join")
    assert told(lambda: node("neither")) == []


def test_dgc_gives_back_to_the_groups_that_it_took_from() -> None:
    def node() -> list[float]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        session = gossip.join(model, optimizer, algorithm="dgc")
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "momentum": 0.5})
        session.finish()
        return [group["momentum"] for group in optimizer.param_groups]

    assert gossip.launch(node, 2) == [[0.9, 0.5]] * 2


# -- loading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", PARAMETER)
def test_a_model_that_is_loaded_after_join_is_told(spec: str) -> None:
    def node(restore: bool) -> None:
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        state = session.state_dict()
        model.load_state_dict(Net().state_dict())
        if restore:
            session.load_state_dict(state)
        learn(model, optimizer, steps=2)
        session.finish()

    (text,) = told(lambda: node(False))
    assert text.startswith("the model's state was loaded after join")
    assert told(lambda: node(True)) == []


@pytest.mark.parametrize("spec", GRADIENT)
def test_gradient_methods_go_on_from_what_was_loaded(spec: str) -> None:
    def node() -> None:
        model = Net()
        optimizer = sgd(model)
        gossip.join(model, optimizer, algorithm=spec)
        model.load_state_dict(Net().state_dict())
        learn(model, optimizer)

    assert told(node) == []


# -- the averaged model -------------------------------------------------------------------------------------


def test_a_module_that_is_used_twice_has_one_average_under_both_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.BatchNorm1d(3)

    def node() -> dict[str, Tensor]:
        model = Twice()
        session = gossip.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.a.running_mean.fill_(float(session.rank))  # type: ignore[union-attr]
        return session.averaged_state_dict()

    for state in gossip.launch(node, 2):
        assert torch.equal(state["a.running_mean"], torch.full((3,), 0.5))
        assert torch.equal(state["b.running_mean"], torch.full((3,), 0.5))


def test_frozen_parameters_that_differ_are_averaged_and_constants_are_not_touched() -> None:
    """Such as a teacher that follows the student's moving average."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher, self.constant = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
            for p in (*self.teacher.parameters(), *self.constant.parameters()):
                p.requires_grad_(False)

    def node() -> bool:
        torch.manual_seed(3)
        model = Pair()
        session = gossip.join(model, torch.optim.SGD(model.student.parameters(), lr=0.1))
        model.teacher.weight.data.fill_(float(session.rank))
        state = session.averaged_state_dict()
        assert torch.equal(state["teacher.weight"], torch.full((2, 3), 1.0))
        return torch.equal(state["constant.weight"], model.constant.weight)

    assert all(gossip.launch(node, 3))


# -- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dpsgd", "dcd", "choco", "allreduce", "p3"])
def test_finally_finish_does_not_hide_the_exception(spec: str) -> None:
    def node() -> None:
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        try:
            learn(model, optimizer, session.rank, 3)
            if session.rank == 1:
                raise ValueError("mine")
            learn(model, optimizer, session.rank, 3)
        finally:
            session.finish()

    with pytest.raises(ValueError, match="mine"):
        gossip.launch(node, 3)


def started_with(**variables: str) -> subprocess.CompletedProcess[str]:
    """A script that was started in this environment."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM"))} | variables
    script = [sys.executable, "-c", "import gossip; gossip.world()"]
    return subprocess.run(script, env=env, capture_output=True, text=True, check=False)


def test_a_launcher_of_another_mpi_is_an_error() -> None:
    """It would be as many trainings, each of one node."""
    ran = started_with(PMI_RANK="1", PMI_SIZE="4")
    assert ran.returncode != 0 and "one of 4 processes, but MPI knows of this one alone" in ran.stderr


def test_torchrun_is_told_to_be_the_wrong_launcher() -> None:
    first, second = (started_with(WORLD_SIZE="4", RANK=rank) for rank in "01")
    assert first.returncode == second.returncode == 0
    assert "WORLD_SIZE=4, but no MPI: this process trains alone" in first.stderr and second.stderr == ""
