"""The values of largest magnitude: a fixed share of them, or all above a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, option, register
from .identity import Identity
from .noise import derive_key
from .sparse import SparseCompressor, at_least, kth_largest, largest, magnitudes

SAMPLE_STRIDES = 100, 1000  # DGC samples 0.1 to 1 % of the vector:
SAMPLE_LEAST, SAMPLE_ENOUGH = 1 << 10, 1 << 16  # more than 1 % of short ones, less of long ones
EXACT_SAMPLE = 1 << 16  # values that foretell where the exact top k lie
MARGIN = 3.0  # the sample holds share ± √share of the true top k; a few too many that pass cost little


@register("topk")
@dataclass(frozen=True)
class TopK(SparseCompressor):
    """C(v)_i = v_i for the k = round(ratio n) >= 1 largest |v_i|, else 0; a contraction with delta >= k/n.

    threshold=exact sends exactly k values. threshold=sampled is DGC's way: the threshold comes from a strided
    sample with random start, of which it keeps the share `ratio` and `MARGIN` standard deviations more; of
    the values at or above it, usually some more than k, the exact top k are sent. It compares each value once
    where exact selection sorts, and may send fewer than k values, at least one; of zeros only that one.

    Bytes: see sparse.py; count = k if exact, 1..k if sampled.
    """

    ratio: float = option(0.01, "share of the values that is sent, in (0, 1]; at least one value")
    threshold: str = option("exact", "exact, or sampled: from 0.1 to 1 % of the values, as in DGC")
    values: Compressor = option(Identity(), "codec of the values sent, e.g. qsgd:bits=4")  # noqa: RUF009

    paper = "Lin et al. 2018, arXiv 1712.01887"

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(
                f"topk: ratio={self.ratio} given; more than 0 and at most 1 fits, e.g. topk:ratio=0.01"
            )
        if self.threshold not in ("exact", "sampled"):
            raise ValueError(
                f"topk: threshold={self.threshold} given; exact or sampled fits, e.g. topk:threshold=sampled"
            )

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.threshold == "exact" and self.values.fixed_size

    def most(self, n: int) -> int:
        return kept(n, self.ratio)

    def count_fits(self, count: int, n: int) -> bool:
        return count == self.most(n) if self.threshold == "exact" else min(n, 1) <= count <= self.most(n)

    def select(self, x: Tensor, key: int) -> tuple[Tensor, Tensor]:
        n = x.numel()
        k = self.most(n)
        if k == n or self.threshold == "exact":
            return _exact(x, k)
        least, most = SAMPLE_STRIDES
        stride = max(1, min(n // SAMPLE_LEAST, max(least, min(most, n // SAMPLE_ENOUGH))))
        sample = magnitudes(x[derive_key(key, 1) % stride :: stride])
        share = kept(sample.numel(), self.ratio)
        rank = min(sample.numel(), share + round(MARGIN * share**0.5))
        index, values = at_least(x, kth_largest(sample, rank).clamp_(min=1))  # zeros need no telling
        return _at_most(k, index, values) if index.numel() else (index.new_zeros(1), x[:1])

    def contraction_gamma(self) -> float:
        """4 ratio, at most 1: by Koloskova et al. 2020 (arXiv 1907.09356) 0.04 is tuned for the top 1 %."""
        return min(1.0, 4 * self.ratio)


@register("threshold")
@dataclass(frozen=True)
class Threshold(SparseCompressor):
    """C(v)_i = v_i where |v_i| >= value, else 0. Error feedback makes up for what stays below.

    Bytes: see sparse.py; any count from 0 to n, so a message may be twice as long as the vector.
    """

    value: float = option(0.01, "the smallest magnitude that is sent")
    values: Compressor = option(Identity(), "codec of the values sent, e.g. qsgd:bits=4")  # noqa: RUF009

    paper = "Strom 2015, Interspeech"
    fixed_size = False

    def __post_init__(self) -> None:
        if not 0 <= self.value < float("inf"):
            raise ValueError(f"threshold: value={self.value} given; 0 or more fits, e.g. threshold:0.01")

    def most(self, n: int) -> int:
        return n

    def count_fits(self, count: int, n: int) -> bool:
        return 0 <= count <= n

    def select(self, x: Tensor, key: int) -> tuple[Tensor, Tensor]:
        least = magnitudes(torch.tensor(self.value, dtype=torch.float32))
        return at_least(x, least.to(x.device))

    def contraction_gamma(self) -> float:
        """0.04, as for the top 1 %: what share passes is not known beforehand."""
        return 0.04


def kept(n: int, ratio: float) -> int:
    """round(ratio n), at least 1, at most n."""
    return min(n, max(1, round(ratio * n)))


def _exact(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest, among the values that a sample says are large enough; among all if it was wrong."""
    stride = x.numel() // EXACT_SAMPLE
    if stride >= 2:
        sample = magnitudes(x[::stride])
        share = k / stride
        rank = math.ceil(share + 5 * math.sqrt(share) + 5)  # a sample with k in its first `rank`: 5 sigma
        if rank < sample.numel() // 2:
            index, values = at_least(x, kth_largest(sample, rank))
            if index.numel() >= k:
                return _at_most(k, index, values)
    index = largest(x, k)
    return index, x[index]


def _at_most(k: int, index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """These places and values, or the k largest of them."""
    if index.numel() <= k:
        return index, values
    place = largest(values, k)
    return index[place], values[place]
