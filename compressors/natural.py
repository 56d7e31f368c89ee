"""Natural compression: stochastic rounding to powers of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_all_finite, check_length, register
from .noise import random_words
from .packing import pack, packed_bytes, to_bytes, unpack

_MANTISSA = 23


@register("natural")
@dataclass(frozen=True)
class Natural(Compressor):
    """C(v) = sign(v) 2^e or sign(v) 2^(e+1), e = floor(log2 |v|), unbiased; omega = 1/8.

    On the bits of a float32 this is: add a random 23-bit integer, cut the mantissa off. Values below 2^-126
    go to 0 or 2^-126, without bias; magnitudes above 2^127 saturate there.

        +-----------------------------+-------------------------------------+
        | n x uint8: biased exponents | ceil(n/8) bytes: signs (1 negative) |     width 9 of packing.py
        +-----------------------------+-------------------------------------+
    """

    paper = "Horvath et al. 2019, arXiv 1905.10988"
    unbiased = True

    def max_bytes(self, n: int) -> int:
        return packed_bytes(n, 9)

    def encode(self, x: Tensor, key: int) -> Tensor:
        largest = 2.0**127
        noise = random_words(x.numel(), key, x.device).bitwise_and_((1 << _MANTISSA) - 1)
        bits = x.clamp(-largest, largest).view(torch.int32).add_(noise)
        payload = to_bytes(*pack(bits.bitwise_right_shift_(_MANTISSA).bitwise_and_(0x1FF), 9))
        check_all_finite(x, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        return unpack(payload, n, 9).bitwise_left_shift_(_MANTISSA).view(torch.float32)
