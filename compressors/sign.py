"""Scaled sign, and 1-bit quantization with a mean for each side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_finite, check_length, option, register
from .blocks import block_shape, check_block, multiply_rows_, reduce_rows
from .packing import from_bytes, pack, packed_bytes, to_bytes, unpack


@register("sign")
@dataclass(frozen=True)
class Sign(Compressor):
    """C(v)_i = sign(v_i) * mean |v| of the block; sign(0) = 1.

    ||v - C(v)||^2 = ||v||^2 - ||v||_1^2 / d for a block of d values.

        +-------------------------+----------------------------+
        | rows x float32: mean|v| | n x 1 bit: v >= 0, packed  |
        +-------------------------+----------------------------+
    """

    block: int | str = option(512, "values that share one scale, or `tensor` for all")

    paper = "Karimireddy et al. 2019, arXiv 1901.09847"

    def __post_init__(self) -> None:
        check_block("sign", self.block)

    def max_bytes(self, n: int) -> int:
        return 4 * block_shape(n, self.block)[0] + packed_bytes(n, 1)

    def encode(self, x: Tensor, key: int) -> Tensor:
        _, columns = block_shape(x.numel(), self.block)
        mean = _row_means(x.abs(), columns, _row_lengths(x, columns))
        payload = to_bytes(mean, *pack(x.ge(0), 1))
        check_finite(mean, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        rows, columns = block_shape(n, self.block)
        mean = from_bytes(payload[: 4 * rows], torch.float32)
        signs = unpack(payload[4 * rows :], n, 1).to(torch.float32).mul_(2).sub_(1)
        return multiply_rows_(signs, mean, columns)

    def contraction_gamma(self) -> float:
        """0.45, tuned for CHOCO-SGD by Koloskova et al. 2020 (arXiv 1907.09356)."""
        return 0.45


@register("onebit")
@dataclass(frozen=True)
class OneBit(Compressor):
    """C(v)_i = mean of the block's values >= 0 where v_i >= 0, mean of the negative ones elsewhere.

    +----------------------+----------------------+---------------------------+
    | rows x float32: mean | rows x float32: mean | n x 1 bit: v >= 0, packed |
    | of the values >= 0   | of the values < 0    |                           |
    +----------------------+----------------------+---------------------------+
    """

    block: int | str = option(512, "values that share two means, or `tensor` for all")

    paper = "Seide et al. 2014, Interspeech"

    def __post_init__(self) -> None:
        check_block("onebit", self.block)

    def max_bytes(self, n: int) -> int:
        return 8 * block_shape(n, self.block)[0] + packed_bytes(n, 1)

    def encode(self, x: Tensor, key: int) -> Tensor:
        _, columns = block_shape(x.numel(), self.block)
        above = x.ge(0)
        count = reduce_rows(above, columns, lambda rows: rows.sum(1, dtype=torch.int32))
        high = _row_means(x.clamp(min=0), columns, count)
        low = _row_means(x.clamp(max=0), columns, _row_lengths(x, columns) - count)
        payload = to_bytes(high, low, *pack(above, 1))
        check_finite(torch.cat([high, low]), self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        rows, columns = block_shape(n, self.block)
        high, low = from_bytes(payload[: 8 * rows], torch.float32).view(2, rows)
        ones = unpack(payload[8 * rows :], n, 1).to(torch.float32)
        zeros = multiply_rows_(1 - ones, low, columns)
        return multiply_rows_(ones, high, columns).add_(zeros)  # one of the terms is 0; torch.where is slower


def _row_means(values: Tensor, columns: int, counts: Tensor) -> Tensor:
    """Sum of each row over its count, float32 [rows]; finite wherever the row is; 0 if the count is 0."""
    sums = reduce_rows(values, columns, lambda rows: rows.sum(1))
    if not bool(torch.isfinite(sums).all()):  # a sum of finite values may exceed float32, their mean does not
        sums = reduce_rows(values, columns, lambda rows: rows.sum(1, dtype=torch.float64))
    return sums.div_(counts.clamp(min=1)).to(torch.float32)


def _row_lengths(values: Tensor, columns: int) -> Tensor:
    return reduce_rows(
        values, columns, lambda rows: rows.new_full((rows.shape[0],), rows.shape[1], dtype=torch.int32)
    )
