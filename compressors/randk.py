"""A random subset of the values, which the receiver finds from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .base import Compressor, check_all_finite, check_header, option, register
from .identity import Identity
from .noise import derive_key, random_words
from .packing import from_bytes, to_bytes
from .topk import kept

_FLOAT32_MAX = torch.finfo(torch.float32).max


@register("randk")
@dataclass(frozen=True)
class RandK(Compressor):
    """C(v)_i = v_i on k = round(ratio n) >= 1 coordinates drawn afresh for every key, else 0.

    scaled: times n/k, which makes it unbiased, omega = n/k - 1 (magnitudes saturate at float32's largest).
    Otherwise a contraction with delta = k/n in expectation.

        +--------------+----------------------------------------------------------------------+
        | uint64: seed | the payload of the k values, by ascending index, of the values codec |
        +--------------+----------------------------------------------------------------------+

    Values that are not sent decode to -0.0 (see sparse.py).
    """

    ratio: float = option(0.01, "share of the values that is sent, in (0, 1]; at least one value")
    scaled: bool = option(True, "multiply by n/k (unbiased), or not (a contraction)")
    values: Compressor = option(Identity(), "codec of the values sent, e.g. qsgd:bits=4")  # noqa: RUF009

    paper = "Stich et al. 2018, arXiv 1809.07599"

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(
                f"randk: ratio={self.ratio} given; more than 0 and at most 1 fits, e.g. randk:ratio=0.01"
            )

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.scaled and self.values.unbiased

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.values.fixed_size

    def max_bytes(self, n: int) -> int:
        return 8 + self.values.max_bytes(kept(n, self.ratio))

    def encode(self, x: Tensor, key: int) -> Tensor:
        n = x.numel()
        k = kept(n, self.ratio)
        seed = derive_key(key, 0)
        values = x[random_indices(n, k, seed).to(x.device)]
        if self.scaled and n:
            values.mul_(n / k).clamp_(-_FLOAT32_MAX, _FLOAT32_MAX)
        header = torch.from_numpy(np.array([seed], np.uint64).view(np.int64)).to(x.device)
        payload = to_bytes(header, self.values.encode(values, derive_key(key, 1)))
        check_all_finite(x, self)  # also what was not drawn
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        index, values = self._pairs(payload, n)
        unsent = torch.full((n,), -0.0, dtype=torch.float32, device=payload.device)
        return unsent.index_copy_(0, index, values)

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        index, values = self._pairs(payload, out.numel())
        out.index_add_(0, index, values, alpha=alpha)

    def _pairs(self, payload: Tensor, n: int) -> tuple[Tensor, Tensor]:
        check_header(payload, 8, n, self)
        k = kept(n, self.ratio)
        values = self.values.decode(payload[8:], k)
        seed = int(from_bytes(payload[:8], torch.int64))
        return random_indices(n, k, seed).to(payload.device), values


def random_indices(n: int, k: int, seed: int) -> Tensor:
    """int64 [k], ascending: a uniformly random k-subset of 0..n-1, the same on every machine.

    Uniform draws without their duplicates are a uniform subset of its size; of that, k values at random. Of
    the complement where that is smaller.
    """
    return torch.from_numpy(_subset(n, k, seed))


def _subset(n: int, k: int, seed: int) -> NDArray[np.int64]:
    if k == 0:
        return np.empty(0, np.int64)
    if 2 * k > n:
        mask = np.ones(n, bool)
        mask[_subset(n, n - k, seed)] = False
        return np.flatnonzero(mask)
    draws = k + 2 * k * k // n + 64  # leaves k distinct ones but for rare cases
    while True:
        words = random_words(2 * draws, seed).numpy().view(np.uint64)
        distinct = _distinct((words % np.uint64(n)).astype(np.int64), n)
        if distinct.size >= k:
            order = random_words(distinct.size, derive_key(seed, 0)).numpy()  # a key's words all differ
            return distinct[order <= np.partition(order, k - 1)[k - 1]]
        draws *= 2


def _distinct(drawn: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Ascending, without duplicates; by a mark for each of 0..n-1 where they are many, else by sorting."""
    if 16 * drawn.size > n:
        marks = np.zeros(n, bool)
        marks[drawn] = True
        return np.flatnonzero(marks)
    drawn = np.sort(drawn)
    return drawn[np.append(True, drawn[1:] != drawn[:-1])]
