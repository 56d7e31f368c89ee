"""The layers of a model: how many values each has and how long it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import toml
from gossip.errors import UsageError
from gossip.suggest import nearest

HERE = Path(__file__).parent
MODELS = tuple(sorted(path.stem for path in HERE.glob("*.toml")))
"""A file is TOML, a line per layer in the order of the forward pass: ``"name" = [values, multiply-adds]``.

A layer is what one module holds, weight and bias, as in `gossip.algorithms.p3`.
"""


@dataclass(frozen=True)
class Layer:
    """One layer; times in seconds per step."""

    name: str
    values: int
    forward: float
    backward: float


def load(model: str, compute: float) -> tuple[Layer, ...]:
    """The layers of `model` in forward order; a step computes for `compute` seconds in all.

    Layers share that time by their multiply-adds, and backward takes twice as long as forward: it computes
    the gradients of the weights and of the inputs.

    Raises:
        UsageError: there is no such model.
    """
    rows = _rows(model)
    work = sum(macs for _, macs in rows.values())
    return tuple(
        Layer(name, values, compute * macs / work / 3, compute * macs / work * 2 / 3)
        for name, (values, macs) in rows.items()
    )


def multiply_adds(model: str) -> int:
    """Of one image's forward pass.

    Raises:
        UsageError: there is no such model.
    """
    return sum(macs for _, macs in _rows(model).values())


def _rows(model: str) -> dict[str, Any]:
    if model not in MODELS:
        near = nearest(model, MODELS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise UsageError(f"model {model!r}: there is no such model{hint}\nThere is: {', '.join(MODELS)}")
    return toml.read(HERE / f"{model}.toml")


def total(layers: Sequence[Layer]) -> tuple[int, float]:
    """Values, and seconds of computing per step."""
    return sum(layer.values for layer in layers), sum(layer.forward + layer.backward for layer in layers)
