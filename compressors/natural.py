"""Natural compression: stochastic rounding to powers of two."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules, stats
from .base import register
from .rows import RowCodec
from .rules import Rule
from .stats import Stat


@register("natural")
@dataclass(frozen=True)
class Natural(RowCodec):
    """C(v) = sign(v) 2^e or sign(v) 2^(e+1), e = floor(log2 |v|), unbiased; omega = 1/8.

    On the bits of a float32 this is: add a random 23-bit integer, cut the mantissa off. Values below 2^-126
    go to 0 or 2^-126, without bias; magnitudes above 2^127 saturate there.

        +-----------------------------+-------------------------------------+
        | n x uint8: biased exponents | ceil(n/8) bytes: signs (1 negative) |     width 9 of packing.py
        +-----------------------------+-------------------------------------+
    """

    paper = "Horvath et al. 2019, arXiv 1905.10988"
    unbiased = True

    @property
    def stat(self) -> Stat:
        return stats.NONE

    @property
    def rule(self) -> Rule:
        return rules.PowerOfTwo()
