"""256 even steps between each block's smallest and largest value."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules, stats
from .base import option, register
from .blocks import check_block
from .rows import RowCodec
from .rules import Rule
from .stats import Stat


@register("minmax")
@dataclass(frozen=True)
class MinMax(RowCodec):
    """C(v)_i = lo + q_i (hi - lo) / 255 with q_i in 0..255; lo, hi = min, max of the block.

    +-------------------+-------------------+---------------+
    | rows x float32 lo | rows x float32 hi | n x uint8 q_i |
    +-------------------+-------------------+---------------+
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

    @property
    def stat(self) -> Stat:
        return stats.RANGE

    @property
    def rule(self) -> Rule:
        return rules.Range(self.rounding == "nearest")
