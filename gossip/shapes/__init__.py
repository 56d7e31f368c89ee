"""The tensors of a model by name and shape: all that the bytes of a message depend on.

A file of shapes is TOML, a line per trainable tensor, in the order in which the model registers them:

    "conv1.weight" = [64, 3, 7, 7]
    "bn1.bias" = [64]

The files beside this one are models of papers whose tables are compared with. `experiments/shapes.py` writes
the file of any model that it can train.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import nn

from compressors import Shape
from gossip.errors import UsageError
from gossip.suggest import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Shapes:
    """A model's name, and its trainable tensors: (name, shape), in the order of `Module.named_parameters`."""

    name: str
    tensors: tuple[tuple[str, Shape], ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes alone."""
        return tuple(shape for _, shape in self.tensors)

    @property
    def size(self) -> int:
        """d, the number of values."""
        return sum(map(math.prod, self.shapes))

    def module(self) -> nn.Module:
        """Modules with these parameters and nothing else, on the meta device: they take no memory.

        What a model's layer holds is in one module here too, which matters to methods that cut layers.
        """
        model = nn.Module()
        layers = {"": model}
        for name, shape in self.tensors:
            layer, _, leaf = name.rpartition(".")
            if layer not in layers:
                layers[layer] = nn.Module()
                model.add_module(layer.replace(".", "/"), layers[layer])
            layers[layer].register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta")))
        return model

    def __str__(self) -> str:
        """The shapes as a file that `load` reads."""
        lines = (f'"{name}" = {list(shape)}\n' for name, shape in self.tensors)
        return f"# {self.name}: {self.size:,} values.\n\n{''.join(lines)}"


def of(model: nn.Module, name: str) -> Shapes:
    """The shapes of a torch model, called `name`. Tied parameters count once, frozen and empty ones not."""
    tensors = ((key, tuple(p.shape)) for key, p in model.named_parameters() if p.requires_grad and p.numel())
    return Shapes(name, tuple(tensors))


def built_in() -> tuple[str, ...]:
    """The names of the files that come with the package."""
    found = (file.name for file in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def load(model: str) -> Shapes:
    """The shapes in a file, or in the built-in one of this name.

    Raises:
        UsageError: there is no such name or file, or what it holds are no shapes.
    """
    if model in built_in():
        return _parse(files(__name__).joinpath(f"{model}.toml").read_text("utf-8"), model, model)
    try:
        return _parse(Path(model).read_text("utf-8"), Path(model).stem, model)
    except (OSError, UnicodeDecodeError) as error:
        near = nearest(model, built_in())
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"model {model!r}: {f'did you mean {near!r}?' if near else f'cannot be read ({reason}).'}\n"
            f"There is: {', '.join(built_in())}; or give a file of shapes.\n"
            "That of a model which can be trained here: python -m experiments.shapes resnet110 > FILE"
        ) from None


def _parse(text: str, name: str, source: str) -> Shapes:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: {error}. {_FORM}") from None
    for key, shape in table.items():
        if not (isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)):
            raise UsageError(f"{source}: {key} = {shape!r} is no shape. {_FORM}")
    if not table:
        raise UsageError(f"{source}: holds no tensor. {_FORM}")
    return Shapes(name, tuple((key, tuple(shape)) for key, shape in table.items()))


_FORM = 'A file of shapes has a line per tensor, such as "conv1.weight" = [64, 3, 7, 7] (with the quotes).'
