"""How a value becomes a small integer given its block's tables, and back: `Rule`, in torch.

These functions define the bytes; _kernels.c computes the same, operation by operation, each rounded once to
float32. Tables and what is derived from them come as tensors that broadcast against the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

_HALF_MAX = torch.finfo(torch.float32).max / 2


class Rule(ABC):
    """Codes of `width` bits for float32 values.

    Attributes:
        code, back: the numbers of `encode` and `decode` in _kernels.c; `shift`, `offset`, `bound`, `step` and
            `nearest` are parameters there.
        noisy: whether it takes random words.
    """

    code: ClassVar[int]
    back: ClassVar[int]
    width: int
    noisy: bool = False
    shift: int = 0
    offset: int = 0
    bound: float = 0.0
    step: float = 0.0
    nearest: bool = False

    def scaling(self, tables: Tensor) -> list[Tensor]:
        """What `encode` needs of each block: vectors [rows] from tables float32 [tables, rows]."""
        return []

    @abstractmethod
    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        """float32 [m] -> int32 codes [m]. `words`: int32 [m], random, or None."""

    @abstractmethod
    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        """int32 [m] -> fresh float32 [m]."""


@dataclass(frozen=True)
class Levels(Rule):
    """Stochastic rounding of v / scale, in [-1, 1], to q / s; code = q + s.

    In integers: with v / scale = t, |t| <= 1, code = (int(t s 2^k) + s 2^k + noise) >> k, noise uniform on
    0..2^k - 1, so E q = s t up to the cut of int, less than 2^-k. k is as large as 32 bits allow, at most 23.
    The two roundings of t cost 2^-23 of it. 0 becomes 0 whatever the noise.
    """

    s: int
    code = back = 0
    noisy = True

    @property
    def width(self) -> int:  # type: ignore[override]
        return (2 * self.s).bit_length()

    @property
    def shift(self) -> int:  # type: ignore[override]
        return min(23, 30 - self.s.bit_length())

    @property
    def offset(self) -> int:  # type: ignore[override]
        return self.s << self.shift

    @property
    def bound(self) -> float:  # type: ignore[override]
        return float(self.offset)

    @property
    def step(self) -> float:  # type: ignore[override]
        return 1 / self.s

    def scaling(self, tables: Tensor) -> list[Tensor]:
        return factors(tables[0], self.bound)

    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        return rounded((x * scaling[0]).mul_(scaling[1]).clamp_(-self.bound, self.bound), self, words)

    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        return (codes - self.s).to(torch.float32).mul_(self.step).mul_(tables[0])


@dataclass(frozen=True)
class Coin(Rule):
    """+scale with probability (1 + v / scale) / 2, else -scale; codes 1 and 0."""

    code = 0
    back = 2  # as `Side`
    width = 1
    noisy = True
    shift = 24
    offset = 1 << 23
    bound = float(1 << 23)

    def scaling(self, tables: Tensor) -> list[Tensor]:
        return factors(tables[0], self.bound)

    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        return rounded((x * scaling[0]).mul_(scaling[1]).clamp_(-self.bound, self.bound), self, words)

    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        return torch.where(codes.bool(), tables[0], -tables[0])


@dataclass(frozen=True)
class Range(Rule):
    """q in 0..255 for lo + q (hi - lo) / 255, rounded like `Levels`, or to nearest.

    Both sides compute with halves, since hi - lo may exceed float32.
    """

    nearest: bool = False
    code = back = 1
    width = 8
    shift = 22
    bound = float(255 << 22)
    step = 1 / 255

    @property
    def noisy(self) -> bool:  # type: ignore[override]
        return not self.nearest

    def scaling(self, tables: Tensor) -> list[Tensor]:
        lo = tables[0] * 0.5
        return [lo, *factors(tables[1] * 0.5 - lo, self.bound)]

    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        lo, a, b = scaling
        return rounded((x * 0.5).sub_(lo).mul_(a).mul_(b).clamp_(0, self.bound), self, words)

    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        lo = tables[0] * 0.5
        values = codes.to(torch.float32).mul_(self.step).mul_(tables[1] * 0.5 - lo).add_(lo)
        return values.clamp_(-_HALF_MAX, _HALF_MAX).mul_(2)


@dataclass(frozen=True)
class Side(Rule):
    """1 where v >= 0; decodes to the block's first table there, else to the second or minus the first."""

    code = back = 2
    width = 1

    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        return x.ge(0).to(torch.int32)

    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        return torch.where(codes.bool(), tables[0], tables[1] if len(tables) == 2 else -tables[0])


@dataclass(frozen=True)
class PowerOfTwo(Rule):
    """Sign and exponent of a float32 to whose bits a random 23-bit integer was added: 2^e or 2^(e+1)."""

    code = back = 3
    width = 9
    noisy = True

    def encode(self, x: Tensor, scaling: list[Tensor], words: Tensor | None) -> Tensor:
        assert words is not None
        bits = x.clamp(-(2.0**127), 2.0**127).view(torch.int32)
        return bits.add_(words.bitwise_and_(0x7FFFFF)).bitwise_right_shift_(23).bitwise_and_(0x1FF)

    def decode(self, codes: Tensor, tables: list[Tensor]) -> Tensor:
        return codes.bitwise_left_shift(23).view(torch.float32)


def factors(scale: Tensor, bound: float) -> list[Tensor]:
    """a, b with a b = bound / scale, neither of which leaves float32; b = 0 where scale = 0."""
    a = torch.ones_like(scale).masked_fill_(scale < 2.0**-64, 2.0**64).masked_fill_(scale > 2.0**64, 2.0**-64)
    b = torch.full_like(scale, bound).div_(scale * a).masked_fill_(scale == 0, 0)
    return [a, b]


def rounded(y: Tensor, rule: Rule, words: Tensor | None) -> Tensor:
    """(int(y) + offset + noise of `shift` bits) >> shift, int32. `words`: overwritten; None: to nearest."""
    codes = y.to(torch.int32).add_(rule.offset)
    if words is None:
        codes.add_(1 << (rule.shift - 1))
    else:
        mask = (1 << rule.shift) - 1
        codes.add_(words.bitwise_right_shift_(32 - rule.shift).bitwise_and_(mask))
    return codes.bitwise_right_shift_(rule.shift)
