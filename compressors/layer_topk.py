"""The largest values of each tensor by itself, in one message, with 16-bit run lengths: DGC's message.

    +---------------+----------------------------+------------------------------+
    | uint32: count | uint16 words: run lengths  | the values' payload, made by |
    |               |                            | the `values` codec           |
    +---------------+----------------------------+------------------------------+

A run is the number of values that are not sent before one that is, counted through the whole vector. A run
of r is written as r // 65535 words of 65535, each of which stands for 65,535 values that are not sent and
nothing else (the escape), and one word r % 65535, which ends it. So 65534 is the word 65534, 65535 the words
65535, 0, and 65536 the words 65535, 1; the `count`-th word other than 65535 is the last. With indices=uint32
the places travel as in sparse.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .base import Compressor, PayloadError, option, register
from .identity import Identity
from .noise import derive_key
from .packing import from_bytes
from .sparse import SparseCompressor, positions
from .topk import TopK

ESCAPE = 65535


@register("layer-topk")
@dataclass(frozen=True)
class LayerTopK(SparseCompressor):
    """topk in each tensor by itself, at least one value of each, in one message.

    `sizes` is filled in by `for_segments`; empty, the vector counts as one tensor. Bytes: 4 + 2 k + 4 k for k
    float32 values, and 2 more for every full 65,535 values in a row that are not sent.
    """

    ratio: float = option(0.01, "share of each tensor that is sent, in (0, 1]; at least one value of each")
    threshold: str = option("sampled", "sampled: from 0.1 to 1 % of the tensor, as in DGC; or exact")
    values: Compressor = option(Identity(), "codec of the values sent, e.g. fp16")  # noqa: RUF009
    indices: str = option("runs", "runs: 16-bit run lengths of what is not sent; or uint32")
    sizes: tuple[int, ...] = ()

    paper = "Lin et al. 2018, arXiv 1712.01887"

    def __post_init__(self) -> None:
        self._topk()  # checks ratio and threshold
        if self.indices not in ("runs", "uint32"):
            raise ValueError(
                f"layer-topk: indices={self.indices} given; runs or uint32 fits, e.g. layer-topk:indices=runs"
            )
        object.__setattr__(self, "sizes", tuple(self.sizes))

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.threshold == "exact" and self.indices == "uint32" and self.values.fixed_size

    def for_segments(self, sizes: Sequence[int]) -> LayerTopK:
        return replace(self, sizes=tuple(sizes))

    def contraction_gamma(self) -> float:
        return self._topk().contraction_gamma()

    def most(self, n: int) -> int:
        return sum(map(self._topk().most, self._sizes(n)))

    def count_fits(self, count: int, n: int) -> bool:
        if self.threshold == "exact":
            return count == self.most(n)
        return sum(size > 0 for size in self._sizes(n)) <= count <= self.most(n)

    def select(self, x: Tensor, key: int) -> tuple[Tensor, Tensor]:
        topk, start = self._topk(), 0
        places, found = [], []
        for i, part in enumerate(x.split(self._sizes(x.numel()))):
            index, values = topk.select(part, derive_key(key, i + 1))
            places.append(index + start)
            found.append(values)
            start += part.numel()
        return torch.cat(places), torch.cat(found)

    def index_bytes(self, k: int, n: int) -> int:
        return 2 * (k + (n - k) // ESCAPE) if self.indices == "runs" else super().index_bytes(k, n)

    def encode_index(self, index: Tensor) -> Tensor:
        return encode_runs(index) if self.indices == "runs" else super().encode_index(index)

    def decode_index(self, data: Tensor, count: int, n: int) -> tuple[Tensor, Tensor]:
        if self.indices == "uint32":
            return super().decode_index(data, count, n)
        try:
            index, used = decode_runs(data, count)
        except ValueError as error:
            raise PayloadError(f"layer-topk: {error}") from None
        if count and int(index[-1]) >= n:
            raise PayloadError(f"layer-topk: the run lengths lead to index {int(index[-1])} of {n} values")
        return index, data[used:]

    def _topk(self) -> TopK:
        return TopK(self.ratio, self.threshold)

    def _sizes(self, n: int) -> list[int]:
        sizes = list(self.sizes) or [n]
        if sum(sizes) != n:
            raise ValueError(f"layer-topk: a vector of {n} values given; tensors of {sum(sizes)} in all fit")
        return sizes


def encode_runs(index: Tensor) -> Tensor:
    """Ascending indices, int64 [k] -> int16 words, [k + number of escapes]; read them as unsigned."""
    runs = index.clone()
    runs[1:] -= index[:-1] + 1
    escapes = runs.div(ESCAPE, rounding_mode="floor")
    ends = torch.cumsum(escapes + 1, 0) - 1  # where each run's last word goes
    words = torch.full((int(ends[-1]) + 1 if len(ends) else 0,), ESCAPE, device=index.device)
    words[ends] = runs - escapes * ESCAPE
    return words.to(torch.int32).to(torch.int16)  # the low 16 bits


def decode_runs(data: Tensor, count: int) -> tuple[Tensor, int]:
    """uint8 [m] -> `count` indices, int64, strictly ascending, and how many bytes they took.

    Raises ValueError if the words end before the last index.
    """
    words = from_bytes(data[: data.numel() // 2 * 2], torch.int16)
    ends = positions(words != -1)[:count]  # -1 is the escape, read as signed
    if ends.numel() < count:
        raise ValueError(f"{ends.numel()} run lengths for {count} values")
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=data.device), 0
    used = int(ends[-1]) + 1
    lengths = words[:used].to(torch.int64) & 0xFFFF
    skipped = torch.cumsum(lengths, 0)[ends]
    return skipped + torch.arange(count, device=data.device), 2 * used
