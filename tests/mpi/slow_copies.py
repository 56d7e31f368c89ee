"""Copies to the host that take as long as a GPU's, without one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor

from gossip.transport.staging import Staged


class SlowCopy(Staged):
    """As a GPU's: there after so many looks, and not before."""

    def __init__(self, x: Tensor, looks: int, into: Tensor | None) -> None:
        super().__init__(torch.full_like(x, 77) if into is None else into.fill_(77))
        self.x, self.looks = x.clone(), looks

    @property
    def done(self) -> bool:
        self.looks -= 1
        if self.looks == 0:
            self.host.copy_(self.x)
        return self.looks <= 0


@contextlib.contextmanager
def slow_copies(*looks: int) -> Iterator[None]:
    """Copies to the host take so many looks, in turn."""
    turns = itertools.cycle(looks)

    def to_host(x: Tensor, into: Tensor | None = None) -> Staged:
        return SlowCopy(x, next(turns), into)

    with mock.patch("gossip.transport.mpi.to_host", to_host):
        yield
