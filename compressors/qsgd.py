"""QSGD: stochastic rounding to even levels of each block's norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_finite, check_length, option, register
from .blocks import block_shape, check_block, divide_rows, max_abs, multiply_rows_, nonzero, reduce_rows
from .noise import rounding_noise
from .packing import from_bytes, pack, packed_bytes, to_bytes, unpack

FLOAT32_MAX = torch.finfo(torch.float32).max


@register("qsgd")
@dataclass(frozen=True)
class QSGD(Compressor):
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
            object.__setattr__(self, "bits", (2 * self.levels).bit_length())
        elif self.bits not in (1, 2, 3, 4, 5, 6, 7, 8, 16):
            raise ValueError(f"qsgd: bits={self.bits} given; 1-8 or 16 fits, e.g. qsgd:bits=8")
        if self.norm not in ("max", "l2"):
            raise ValueError(f"qsgd: norm={self.norm} given; max or l2 fits, e.g. qsgd:norm=max")
        check_block("qsgd", self.block)

    @property
    def s(self) -> int:
        """Magnitude levels; 0 stands for the two values of bits=1."""
        return self.levels or (1 << (self.bits - 1)) - 1

    def max_bytes(self, n: int) -> int:
        return 4 * block_shape(n, self.block)[0] + packed_bytes(n, self.bits)

    def encode(self, x: Tensor, key: int) -> Tensor:
        _, columns = block_shape(x.numel(), self.block)
        norms = scale = reduce_rows(x, columns, max_abs)
        y = divide_rows(x, scale, columns)
        if self.norm == "l2":
            # of y, whose squares neither overflow nor vanish
            relative = reduce_rows(y, columns, lambda rows: torch.linalg.vector_norm(rows, 2, dim=1))
            norms = (scale * relative).clamp_(max=FLOAT32_MAX)
            multiply_rows_(y, scale / nonzero(norms), columns)
        payload = to_bytes(norms, *pack(stochastic_codes(y, self.s, key), self.bits))
        check_finite(scale, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        rows, columns = block_shape(n, self.block)
        norms = from_bytes(payload[: 4 * rows], torch.float32)
        codes = unpack(payload[4 * rows :], n, self.bits)
        return multiply_rows_(codes_to_unit(codes, self.s), norms, columns)


def stochastic_codes(y: Tensor, s: int, key: int) -> Tensor:
    """y [n] in [-1, 1] -> codes q + s, E q = s y: uint8, or int32 if s > 127.

    s = 0: codes 1 and 0 stand for +1 and -1. The error of float32 arithmetic in E q / s is below 2^-23.
    """
    noise = rounding_noise(y.numel(), key, y.device)
    if s == 0:
        return torch.gt(y, noise.mul_(2)).to(torch.uint8)
    q = noise.add_(y, alpha=s).round_().clamp_(-s, s)
    if s > 127:
        return q.to(torch.int32).add_(s)
    return q.to(torch.int8).view(torch.uint8).add_(s)


def codes_to_unit(codes: Tensor, s: int) -> Tensor:
    """Inverse of stochastic_codes up to its noise: codes (overwritten) -> float32 q / s."""
    if s == 0:
        return codes.to(torch.float32).mul_(2).sub_(1)
    q = codes.sub_(s)
    if q.dtype == torch.uint8:
        q = q.view(torch.int8)  # it wrapped round: two's complement
    return q.to(torch.float32).div_(s)
