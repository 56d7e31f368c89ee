"""Scaled sign, and 1-bit quantization with a mean for each side."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules, stats
from .base import option, register
from .blocks import check_block
from .rows import RowCodec
from .rules import Rule
from .stats import Stat


@register("sign")
@dataclass(frozen=True)
class Sign(RowCodec):
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

    @property
    def stat(self) -> Stat:
        return stats.MEAN

    @property
    def rule(self) -> Rule:
        return rules.Side()

    def contraction_gamma(self) -> float:
        """0.45, tuned for CHOCO-SGD by Koloskova et al. 2020 (arXiv 1907.09356)."""
        return 0.45


@register("onebit")
@dataclass(frozen=True)
class OneBit(RowCodec):
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

    @property
    def stat(self) -> Stat:
        return stats.MEANS

    @property
    def rule(self) -> Rule:
        return rules.Side()
