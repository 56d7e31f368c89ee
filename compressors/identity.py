"""No compression: float32 as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, check_all_finite, check_length, register, slabs
from .packing import from_bytes


@register("identity")
@dataclass(frozen=True)
class Identity(Compressor):
    """C(v) = v.

    Bytes: n x float32.
    """

    unbiased = True
    lossless = True
    relative_noise = False

    def max_bytes(self, n: int) -> int:
        return 4 * n

    def encode(self, x: Tensor, key: int) -> Tensor:
        payload = torch.empty(4 * x.numel(), dtype=torch.uint8, device=x.device)
        for part, out in slabs(x, payload.view(torch.float32)):
            out.copy_(part)
            check_all_finite(part, self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, 4 * n, n, self)
        return from_bytes(payload, torch.float32).clone()

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        check_length(payload, 4 * out.numel(), out.numel(), self)
        out.add_(from_bytes(payload, torch.float32), alpha=alpha)
