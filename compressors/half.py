"""16-bit floats: fp16 and bf16, rounded to nearest, saturating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Compressor, check_all_finite, check_length, register, slabs
from .packing import from_bytes


class _Half(Compressor):
    """C(v) = v rounded to `dtype`, at most its largest finite value.

    Bytes: n x dtype.
    """

    dtype: ClassVar[torch.dtype]

    def max_bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, x: Tensor, key: int) -> Tensor:
        largest = torch.finfo(self.dtype).max
        payload = torch.empty(2 * x.numel(), dtype=torch.uint8, device=x.device)
        for part, half in slabs(x, payload.view(self.dtype)):
            half.copy_(part.clamp(-largest, largest))
            check_all_finite(part, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, 2 * n, n, self)
        return from_bytes(payload, self.dtype).to(torch.float32)

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        check_length(payload, 2 * out.numel(), out.numel(), self)
        for half, part in slabs(from_bytes(payload, self.dtype), out):
            part.add_(half.to(torch.float32), alpha=alpha)


@register("fp16")
@dataclass(frozen=True)
class FP16(_Half):
    """IEEE half precision: relative error 2^-11 down to 6e-5, saturates at 65504.

    Bytes: n x float16.
    """

    dtype = torch.float16


@register("bf16")
@dataclass(frozen=True)
class BF16(_Half):
    """bfloat16: relative error 2^-8 over float32's whole range.

    Bytes: n x bfloat16.
    """

    dtype = torch.bfloat16
