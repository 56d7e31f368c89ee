"""Copies of GPU tensors in pinned memory of the host, where MPI reads: few MPI libraries know CUDA.

A copy to the host goes by a stream of its own, behind what computes the tensor and beside what is computed
next. The host does not wait for it: it asks `done`, and sends when the copy is there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


class Staged:
    """A tensor that is in the host's memory already."""

    def __init__(self, host: Tensor) -> None:
        self.host = host

    @property
    def done(self) -> bool:
        return True


class _Copy(Staged):
    """`host`, which becomes a copy of the GPU tensor `x`; `x` is kept until then."""

    def __init__(self, x: Tensor, host: Tensor) -> None:
        super().__init__(host)
        self._x: Tensor | None = x
        stream = _stream(x.device)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            host.copy_(x, non_blocking=True)
            self._there = stream.record_event()

    @property
    def done(self) -> bool:
        if self._x is not None and self._there.query():
            self._x = None
        return self._x is None


def to_host(x: Tensor, into: Tensor | None = None) -> Staged:
    """`x` in the host's memory.

    With `into` it is copied there, and the caller may write to `x` at once. Without, what is there stays
    where it is, and nobody may write to `x` any more.
    """
    x = x.detach()
    if into is None:
        return _Copy(x.contiguous(), host_empty(x.shape, x.dtype)) if x.is_cuda else Staged(x.contiguous())
    return _Copy(x.clone(), into) if x.is_cuda else Staged(into.copy_(x))


def host_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory of the host; pinned if this process uses a GPU."""
    with torch.inference_mode(False):  # it may serve again outside of the caller's inference mode
        return torch.empty(shape, dtype=dtype, pin_memory=torch.cuda.is_initialized())


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
