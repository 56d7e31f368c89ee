"""What the codecs that send (index, value) pairs share: the message, and finding the largest values.

    +---------------+-------------------------------+------------------------------+
    | uint32: count | count x uint32: indices,      | the values' payload, made by |
    |               | strictly increasing           | the `values` codec           |
    +---------------+-------------------------------+------------------------------+

Values that are not sent decode to -0.0, the one number whose addition changes no bit of any sum: so adding
only the sent values is bitwise the same as adding the whole decoded vector.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from . import kernels
from .base import Compressor, PayloadError, check_header
from .noise import derive_key
from .packing import from_bytes, to_bytes

MAX_VALUES = (1 << 31) - 1  # indices are handled as int32
_SLAB = 1 << 18
_TILE = 1 << 17  # every one takes a page of memory for what it finds


class SparseCompressor(Compressor):
    """A codec that sends (index, value) pairs; subclasses choose the indices."""

    values: Compressor

    @abstractmethod
    def select(self, x: Tensor, key: int) -> tuple[Tensor, Tensor]:
        """Ascending indices, int64 [k], of what is sent, and x there; NaN and inf must be among them."""

    @abstractmethod
    def most(self, n: int) -> int:
        """Upper bound of the count for n values."""

    @abstractmethod
    def count_fits(self, count: int, n: int) -> bool:
        """Whether a message may hold `count` of n values."""

    def max_bytes(self, n: int) -> int:
        k = self.most(n)
        return 4 + self.index_bytes(k, n) + self.values.max_bytes(k)

    def encode(self, x: Tensor, key: int) -> Tensor:
        if x.numel() > MAX_VALUES:
            raise ValueError(f"{self.name}: {x.numel()} values given; at most {MAX_VALUES} fit")
        index, values = self.select(x, key)
        count = torch.tensor([index.numel()], dtype=torch.int32, device=x.device)
        return to_bytes(count, self.encode_index(index), self.values.encode(values, derive_key(key, 0)))

    def decode(self, payload: Tensor, n: int) -> Tensor:
        index, values = self.decode_pairs(payload, n)
        unsent = torch.full((n,), -0.0, dtype=torch.float32, device=payload.device)
        return unsent.index_copy_(0, index, values)

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        index, values = self.decode_pairs(payload, out.numel())
        out.index_add_(0, index, values, alpha=alpha)

    def decode_pairs(self, payload: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """uint8 [m] -> ascending indices int64 [k], values float32 [k]. Raises PayloadError."""
        check_header(payload, 4, n, self)
        count = int(from_bytes(payload[:4], torch.int32))
        if not self.count_fits(count, n):
            raise PayloadError(f"{self.name}: {count} values announced, {self.most(n)} of {n} fit")
        index, values = self.decode_index(payload[4:], count, n)
        return index, self.values.decode(values, count)

    # -- how indices travel: here as uint32; a subclass may know better -----------------------------------

    def index_bytes(self, k: int, n: int) -> int:
        """Most bytes that up to k indices below n take."""
        return 4 * k

    def encode_index(self, index: Tensor) -> Tensor:
        """int64 [k], ascending -> a tensor of any integer type whose bytes travel."""
        return index.to(torch.int32)

    def decode_index(self, data: Tensor, count: int, n: int) -> tuple[Tensor, Tensor]:
        """uint8 [m] -> `count` ascending indices, int64, and the bytes after them. Raises PayloadError."""
        check_header(data, 4 * count, n, self)
        index = from_bytes(data[: 4 * count], torch.int32)
        if count and not bool((index[0] >= 0) & (index[-1] < n) & (index[1:] > index[:-1]).all()):
            raise PayloadError(f"{self.name}: indices are not strictly increasing within 0..{n - 1}")
        return index.to(torch.int64), data[4 * count :]


def magnitudes(x: Tensor) -> Tensor:
    """|x| as int32 in the same order: the float's bits. inf lies above all numbers, NaN above inf."""
    return x.view(torch.int32) & 0x7FFFFFFF


def kth_largest(a: Tensor, k: int) -> Tensor:
    """The k-th largest value, k >= 1, of int32 [n]: int32 []."""
    if a.device.type == "cpu":  # three times faster than torch.topk
        return torch.from_numpy(np.partition(a.numpy(), a.numel() - k))[a.numel() - k]
    return torch.topk(a, k, sorted=False).values.min()


def at_least(x: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending indices, int64, where magnitudes(x) >= least, int32 [], and x there."""
    if kernels.usable(x) and x.numel():
        index = torch.empty(x.numel(), dtype=torch.int32)  # memory is used only where something is found
        values = torch.empty_like(x)
        counts = torch.empty(-(-x.numel() // _TILE), dtype=torch.int64)
        job = kernels.job(
            x.numel(),
            _TILE,
            x=x.data_ptr(),
            out=values.data_ptr(),
            index=index.data_ptr(),
            counts=counts.data_ptr(),
            least=int(least),
        )
        found = kernels.lib().gossip_select(job)
        return index[:found].to(torch.int64), values[:found].clone()
    slab = _SLAB if x.device.type == "cpu" else max(1, x.numel())
    parts = [positions(magnitudes(part) >= least).add_(i * slab) for i, part in enumerate(x.split(slab))]
    index = torch.cat(parts)
    return index, x[index]


def largest(x: Tensor, k: int) -> Tensor:
    """Ascending indices, int64 [k], of the k largest |x|; of equals the first; NaN is larger than all."""
    a = magnitudes(x)
    if k >= a.numel():
        return torch.arange(a.numel(), device=x.device)
    chosen = torch.zeros_like(a, dtype=torch.bool)
    if k:
        least = kth_largest(a, k)
        chosen = a > least
        chosen[positions(a == least)[: k - int(chosen.sum())]] = True
    return positions(chosen)


def positions(mask: Tensor) -> Tensor:
    """Ascending indices, int64, of the True values of a bool [n]."""
    if mask.device.type == "cpu":  # several times faster than torch.nonzero
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().view(-1)
