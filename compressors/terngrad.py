"""TernGrad: -scale, 0 or +scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_finite, check_length, gamma_of, option, register, relative_error
from .blocks import block_shape, check_block, divide_rows, max_abs, multiply_rows_, nonzero, reduce_rows
from .packing import from_bytes, pack, packed_bytes, to_bytes, unpack
from .qsgd import codes_to_unit, stochastic_codes


@register("terngrad")
@dataclass(frozen=True)
class TernGrad(Compressor):
    """C(v)_i = scale * t_i with t_i in {-1, 0, 1}, E t_i = v_i / scale; scale = max |v| of the block.

    With clip = c > 0 the block is first clipped to c standard deviations (the paper uses 2.5): less variance,
    and no longer unbiased. They are taken about 0, which spares a block of nearly equal values.

        +-----------------------+-----------------------------+
        | rows x float32: scale | n x 2 bits: t_i + 1, packed |
        +-----------------------+-----------------------------+
    """

    clip: float = option(0.0, "clip at this many standard deviations of the block; 0: no clipping")
    block: int | str = option(512, "values that share one scale, or `tensor` for all")

    paper = "Wen et al. 2017, arXiv 1705.07878"

    def __post_init__(self) -> None:
        if not 0 <= self.clip < float("inf"):
            raise ValueError(f"terngrad: clip={self.clip} given; 0 or more fits, e.g. terngrad:clip=2.5")
        check_block("terngrad", self.block)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 0

    def max_bytes(self, n: int) -> int:
        return 4 * block_shape(n, self.block)[0] + packed_bytes(n, 2)

    def encode(self, x: Tensor, key: int) -> Tensor:
        _, columns = block_shape(x.numel(), self.block)
        scales = reduce_rows(x, columns, max_abs)
        y = divide_rows(x, scales, columns)
        if self.clip:
            limit = reduce_rows(y, columns, _root_mean_square).mul_(self.clip).clamp_(max=1)
            limit = nonzero(limit)
            y = divide_rows(y, limit, columns).clamp_(-1, 1)
            scales = scales * limit
        payload = to_bytes(scales, *pack(stochastic_codes(y, 1, key), 2))
        check_finite(scales, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        rows, columns = block_shape(n, self.block)
        scales = from_bytes(payload[: 4 * rows], torch.float32)
        return multiply_rows_(codes_to_unit(unpack(payload[4 * rows :], n, 2), 1), scales, columns)

    def contraction_gamma(self) -> float:
        """As for an unbiased codec: clipped or not, its error is noise."""
        return gamma_of(1 / (1 + relative_error(self) ** 2))


def _root_mean_square(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, 2, dim=1) / rows.shape[1] ** 0.5
