"""QSGD: stochastic rounding to even levels of each block's norm."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules, stats
from .base import option, register
from .blocks import check_block
from .rows import RowCodec
from .rules import Rule
from .stats import Stat


@register("qsgd")
@dataclass(frozen=True)
class QSGD(RowCodec):
    """C(v)_i = norm(block) * q_i / s with integer q_i in -s..s, E q_i = s v_i / norm(block).

    s = 2^(bits-1) - 1, or `levels`, which sets `bits` to the width of 2 levels + 1 codes. With bits=1 the
    value is +norm or -norm. norm = max |v_i| or ||v||_2 of the block.

        +----------------------------+--------------------------------------------------+
        | rows x float32: norms      | n x bits: codes q_i + s, packed (see packing.py) |
        +----------------------------+--------------------------------------------------+
                                       bits=1: 1 is +norm, 0 is -norm
    """

    bits: int = option(8, "bits per value, sign included: 1-8 or 16")
    levels: int | None = option(None, "magnitude levels s, in place of bits: 1-32767")
    norm: str = option("max", "what a block is scaled by: max or l2")
    block: int | str = option(512, "values that share one norm, or `tensor` for all")

    paper = "Alistarh et al. 2017, arXiv 1610.02132"
    unbiased = True

    def __post_init__(self) -> None:
        if self.levels is not None:
            if not 1 <= self.levels <= 32767:
                raise ValueError(f"qsgd: levels={self.levels} given; 1-32767 fits, e.g. qsgd:levels=7")
            width = (2 * self.levels).bit_length()
            if self.bits not in (8, width):
                raise ValueError(
                    f"qsgd: bits={self.bits},levels={self.levels} given; one of them fits, e.g. qsgd:levels=7"
                )
            object.__setattr__(self, "bits", width)
        elif self.bits not in (1, 2, 3, 4, 5, 6, 7, 8, 16):
            raise ValueError(f"qsgd: bits={self.bits} given; 1-8 or 16 fits, e.g. qsgd:bits=8")
        if self.norm not in ("max", "l2"):
            raise ValueError(f"qsgd: norm={self.norm} given; max or l2 fits, e.g. qsgd:norm=max")
        check_block("qsgd", self.block)

    @property
    def s(self) -> int:
        """Magnitude levels; 0 stands for the two values of bits=1."""
        return self.levels or (1 << (self.bits - 1)) - 1

    @property
    def stat(self) -> Stat:
        return stats.MAX if self.norm == "max" else stats.L2

    @property
    def rule(self) -> Rule:
        return rules.Levels(self.s) if self.s else rules.Coin()
