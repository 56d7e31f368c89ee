"""What every set of images looks like once it is in memory, and where data come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their labels, training and test. Shared between the virtual nodes of a process: read only.

    Attributes:
        train_x, test_x: uint8 [N, 3, s, s], s = 32 unless reduced.
        train_y, test_y: int64 [N], indices into `classes`.
        mean, std: float32 [3], per channel, of the training images scaled to [0, 1].
        classes: the names of the classes.
        caveat: what must stand beside results on these data; "" if nothing must.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    mean: Tensor
    std: Tensor
    classes: tuple[str, ...]
    caveat: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of images and labels: the same wherever the same data were read in the same way."""
        return digest((self.train_x, self.train_y, self.test_x, self.test_y))


class Data(Protocol):
    """A `Dataset`, or a `Corpus` of text."""

    @property
    def digest(self) -> str:
        """Tells these data from others."""
        ...


T_co = TypeVar("T_co", bound=Data, covariant=True)


class Source(Protocol[T_co]):
    """Where data come from. Its files are at `location`."""

    def prepare(self, location: str, /) -> None:
        """Make the files ready. Called on one rank of every host. Raises `UsageError`."""

    def load(self, location: str, /) -> T_co:
        """Read or make the data. Called on every rank after `prepare`. Raises `UsageError`."""
        ...


def digest(tensors: Iterable[Tensor], words: str = "") -> str:
    """SHA-256 of `words`, then of each tensor's shape and values."""
    hashed = hashlib.sha256(words.encode())
    for tensor in tensors:
        hashed.update(f"\n{list(tensor.shape)}\n".encode())
        hashed.update(tensor.contiguous().numpy().data)
    return hashed.hexdigest()


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, float32 [c], of uint8 [N, c, h, w] scaled to [0, 1]."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)])
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ levels
    return mean.float(), (share @ levels.square() - mean.square()).sqrt().float()
