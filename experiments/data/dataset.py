"""What every set of images looks like once it is in memory, and where data come from."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    mean: Tensor
    std: Tensor
    classes: tuple[str, ...]


T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Where data come from: a `Dataset`, or a `Corpus` of text. Its files are at `location`."""

    def prepare(self, location: str, /) -> None:
        """Make the files ready. Called on one rank of every host. Raises `UsageError`."""

    def load(self, location: str, /) -> T_co:
        """Read or make the data. Called on every rank after `prepare`. Raises `UsageError`."""
        ...


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, float32 [c], of uint8 [N, c, h, w] scaled to [0, 1]."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)])
    share = counts.double() / counts.sum(1, keepdim=True)
    mean = share @ levels
    return mean.float(), (share @ levels.square() - mean.square()).sqrt().float()
