"""Models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from experiments.models.lstm import lstm
from experiments.models.mlp import mlp
from experiments.models.resnet import ResNet, Shortcut
from experiments.models.vgg import DEPTHS, VGG
from gossip.spec import Kind

__all__ = ["IMAGE_MODELS", "MODELS", "TEXT_MODELS", "build", "name_of"]


def _resnet(depth: int) -> Callable[..., nn.Module]:
    def maker(num_classes: int = 10, shortcut: Shortcut = "B") -> nn.Module:
        return ResNet(depth, num_classes, shortcut)

    return maker


def _vgg(depth: int) -> Callable[..., nn.Module]:
    def maker(num_classes: int = 10, head: int | None = None) -> nn.Module:
        return VGG(depth, num_classes, head)

    return maker


Maker = Callable[..., nn.Module]
"""Its first parameter is the number of classes or words; the others are its options on the command line."""

IMAGE_MODELS: Mapping[str, Maker] = {
    **{f"resnet{depth}": _resnet(depth) for depth in (8, 20, 32, 56, 110)},
    **{f"vgg{depth}": _vgg(depth) for depth in DEPTHS},
    "mlp": mlp,
}
"""float32 [b, 3, 32, 32] (a ResNet: any side from 8 on) -> logits [b, classes]."""

TEXT_MODELS: Mapping[str, Maker] = {"lstm": lstm}
"""int64 [T, b] and a memory or None -> logits [T, b, words] and the memory."""

MODELS = {**IMAGE_MODELS, **TEXT_MODELS}

_KIND = Kind("model", "", "--model", MODELS)


def name_of(spec: str) -> str:
    """``lstm`` of ``lstm:hidden=64``. Raises `UsageError`: no such model, option or type of value."""
    return _KIND.select(spec)[0]


def build(spec: str, num_classes: int = 10) -> nn.Module:
    """The model `spec`, such as ``resnet20:shortcut=A`` or ``lstm:hidden=64``, with new weights.

    It gives logits over `num_classes` classes or words; `IMAGE_MODELS` and `TEXT_MODELS` say what it takes.

    Raises:
        UsageError: no such model, option or value.
    """
    maker, options = _KIND.select(spec)
    try:
        return MODELS[maker](num_classes, **options)
    except ValueError as error:
        raise _KIND.error(spec, str(error)) from None
