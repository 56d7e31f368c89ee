"""Models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from experiments.models.mlp import mlp
from experiments.models.resnet import ResNet, Shortcut
from gossip.spec import Kind

__all__ = ["MODELS", "build"]


def _resnet(depth: int) -> Callable[..., nn.Module]:
    def maker(num_classes: int = 10, shortcut: Shortcut = "B") -> nn.Module:
        return ResNet(depth, num_classes, shortcut)

    return maker


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": _resnet(depth) for depth in (8, 20, 32, 56, 110)},
    "mlp": mlp,
}
"""A maker's first parameter is the number of classes; the others are its options on the command line."""

_KIND = Kind("model", "", "--model", MODELS)


def build(name: str, num_classes: int = 10) -> nn.Module:
    """The model `name`, such as ``resnet20``, ``resnet20:shortcut=A`` or ``mlp:hidden=64``, with new weights.

    It takes float32 [b, 3, 32, 32] (a ResNet: any side from 8 on) and gives logits [b, num_classes].

    Raises:
        UsageError: no such model, option or value.
    """
    maker, options = _KIND.select(name)
    try:
        return MODELS[maker](num_classes, **options)
    except ValueError as error:
        raise _KIND.error(name, str(error)) from None
