"""256 even steps between each block's smallest and largest value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_finite, check_length, option, register
from .blocks import block_shape, by_rows, check_block, nonzero, reduce_rows
from .noise import rounding_noise
from .packing import from_bytes, to_bytes

_HALF_MAX = torch.finfo(torch.float32).max / 2


@register("minmax")
@dataclass(frozen=True)
class MinMax(Compressor):
    """C(v)_i = lo + q_i (hi - lo) / 255 with q_i in 0..255; lo, hi = min, max of the block.

        +-------------------+-------------------+---------------+
        | rows x float32 lo | rows x float32 hi | n x uint8 q_i |
        +-------------------+-------------------+---------------+

    Both sides compute with halves, since hi - lo may exceed float32.
    """

    rounding: str = option("stochastic", "stochastic (unbiased) or nearest")
    block: int | str = option(512, "values that share one range, or `tensor` for all")

    paper = "Bagua, Gan et al. 2021, arXiv 2107.01499"

    def __post_init__(self) -> None:
        if self.rounding not in ("stochastic", "nearest"):
            raise ValueError(
                f"minmax: rounding={self.rounding} given; stochastic or nearest fits, "
                "e.g. minmax:rounding=nearest"
            )
        check_block("minmax", self.block)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.rounding == "stochastic"

    def max_bytes(self, n: int) -> int:
        return 8 * block_shape(n, self.block)[0] + n

    def encode(self, x: Tensor, key: int) -> Tensor:
        _, columns = block_shape(x.numel(), self.block)
        lo = reduce_rows(x, columns, lambda rows: rows.amin(1))
        hi = reduce_rows(x, columns, lambda rows: rows.amax(1))
        half_step = nonzero(_half_step(lo, hi))
        y = x * 0.5
        for part, row in by_rows(y, columns):
            part.sub_(lo[row, None] * 0.5).div_(half_step[row, None])
        if self.unbiased:
            y.add_(rounding_noise(y.numel(), key, y.device))
        # torch converts to int8 four times faster than to uint8
        q = y.round_().clamp_(0, 255).sub_(128).to(torch.int8).view(torch.uint8).add_(128)
        payload = to_bytes(lo, hi, q)
        check_finite(torch.cat([lo, hi]), self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        rows, columns = block_shape(n, self.block)
        lo, hi = from_bytes(payload[: 8 * rows], torch.float32).view(2, rows)
        half_step = _half_step(lo, hi)
        values = payload[8 * rows :].to(torch.float32)
        for part, row in by_rows(values, columns):
            part.mul_(half_step[row, None]).add_(lo[row, None] * 0.5)
        return values.clamp_(-_HALF_MAX, _HALF_MAX).mul_(2)


def _half_step(lo: Tensor, hi: Tensor) -> Tensor:
    return (hi * 0.5 - lo * 0.5).div_(255)
