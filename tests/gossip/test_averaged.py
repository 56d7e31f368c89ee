"""`averaged_state_dict`: whatever a model keeps in its state, and however it writes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossip
from tests.training import sgd

NODES = 3
CONSTANTS = {
    "mask": torch.full((2,), torch.finfo(torch.float32).min),
    "time": torch.tensor([1700000000.123456789, 1 / 3], dtype=torch.float64),
    "big": torch.tensor([1e300], dtype=torch.float64),
    "phase": torch.tensor([1 + 2j]),
    "short": torch.tensor([1e-3], dtype=torch.float16),
    "steps": torch.tensor(7),
}


class Holder(nn.Module):
    def __init__(self, buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())


def averaged(model: nn.Module, change: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The averaged state and this node's own, after `change(model, rank)`."""
    session = gossip.join(model, sgd(model), algorithm="local")
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float(session.rank))
        if change is not None:
            change(model, session.rank)
    state = session.averaged_state_dict()
    session.finish()
    return state, model.state_dict()


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_equal_everywhere_keeps_its_bits(frozen: bool) -> None:
    def node() -> dict[str, Tensor]:
        model = Holder({} if frozen else CONSTANTS)
        for name, value in CONSTANTS.items():
            if frozen and (value.is_floating_point() or value.is_complex()):
                model.register_parameter(name, nn.Parameter(value.clone(), requires_grad=False))
        return averaged(model)[0]

    for state in gossip.launch(node, NODES):
        assert torch.equal(state["layer.weight"], torch.ones(2, 3))
        for name in CONSTANTS.keys() & state.keys():
            assert state[name].dtype == CONSTANTS[name].dtype
            assert torch.equal(state[name], CONSTANTS[name]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_what_differs_is_averaged_in_its_own_precision(dtype: torch.dtype) -> None:
    base = torch.tensor([1.0, 1 + 2.0**-40 if dtype == torch.float64 else 1.0], dtype=dtype)

    def node() -> dict[str, Tensor]:
        def change(model: nn.Module, rank: int) -> None:
            model.get_buffer("x").add_(rank)

        return averaged(Holder({"x": base}), change)[0]

    for state in gossip.launch(node, NODES):
        assert torch.equal(state["x"], base + 1)


def test_hooks_and_extra_state_see_the_means() -> None:
    class Split(Holder):
        """Writes its weight in two halves, and a dict beside them."""

        def get_extra_state(self) -> dict[str, int]:
            return {"version": 3}

    def split(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for k, part in enumerate(state.pop(prefix + "layer.weight").chunk(2)):
            state[f"{prefix}layer.part{k}"] = part

    def node() -> tuple[dict[str, Any], dict[str, Any]]:
        model = Split({})
        model._register_state_dict_hook(split)
        return averaged(model)

    for state, own in gossip.launch(node, NODES):
        assert state.keys() == own.keys() and state["_extra_state"] == {"version": 3}
        assert torch.equal(state["layer.part0"], torch.ones(1, 3))
        assert torch.equal(state["layer.part1"], torch.ones(1, 3))


def test_the_averaged_state_is_nobodys_memory() -> None:
    def node() -> tuple[bool, bool]:
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.append(model[0])  # used twice: two names of one tensor
        state, own = averaged(model)
        alone = all(x.untyped_storage().nbytes() == x.nbytes for x in state.values())
        pointers = {x.data_ptr() for x in own.values()}
        assert state["0.weight"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(state["0.weight"], state["2.weight"])
        return alone, not any(x.data_ptr() in pointers for x in state.values())

    assert gossip.launch(node, NODES) == [(True, True)] * NODES
