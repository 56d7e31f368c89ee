"""TernGrad: -scale, 0 or +scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import rules, stats
from .base import PaperSize, Shape, gamma_of, option, register, relative_error
from .blocks import check_block
from .rows import RowCodec
from .rules import Rule
from .stats import Stat


@register("terngrad")
@dataclass(frozen=True)
class TernGrad(RowCodec):
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

    @property
    def stat(self) -> Stat:
        return stats.clipped(self.clip) if self.clip else stats.MAX

    @property
    def rule(self) -> Rule:
        return rules.Levels(1)

    def paper_size(self, shapes: Sequence[Shape]) -> PaperSize:
        """The scales are not counted, and the last layer, which TernGrad leaves as it is, takes 32 bits.

        The last layer begins with the last tensor of two dimensions or more.
        """
        sizes = [math.prod(shape) for shape in shapes]
        last = max((i for i, shape in enumerate(shapes) if len(shape) > 1), default=len(shapes))
        size = sum(sizes[:last]) / 4 + 4 * sum(sizes[last:])
        return PaperSize(size, "2 bit a value, 32 bit a value of the last layer")

    def contraction_gamma(self) -> float:
        """As for an unbiased codec: clipped or not, its error is noise."""
        return gamma_of(1 / (1 + relative_error(self) ** 2))
