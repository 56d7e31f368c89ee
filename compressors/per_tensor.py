"""Any codec, applied to each tensor of the vector by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .base import Compressor, PayloadError, check_header, check_length, option, register
from .noise import derive_key
from .packing import from_bytes, to_bytes
from .topk import TopK


@register("per-tensor")
@dataclass(frozen=True)
class PerTensor(Compressor):
    """`codec` on each of the tensors that the vector is made of: layer-wise top-k, one scale per layer, ...

    `sizes` is filled in by `for_segments`; empty, the vector counts as one tensor.

        fixed-size codec:  | payload of tensor 0 | payload of tensor 1 | ...
        otherwise:         | uint32 per tensor: length of its payload | payload of tensor 0 | ...
    """

    codec: Compressor = option(TopK(), "codec of each tensor, e.g. topk:0.01")  # noqa: RUF009
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.codec.unbiased

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.codec.lossless

    @property
    def relative_noise(self) -> bool:  # type: ignore[override]
        return self.codec.relative_noise

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.codec.fixed_size

    def for_segments(self, sizes: Sequence[int]) -> PerTensor:
        return replace(self, sizes=tuple(sizes))

    def contraction_gamma(self) -> float:
        return self.codec.contraction_gamma()

    def max_bytes(self, n: int) -> int:
        sizes = self._sizes(n)
        header = 0 if self.fixed_size else 4 * len(sizes)
        return header + sum(self.codec.max_bytes(size) for size in sizes)

    def encode(self, x: Tensor, key: int) -> Tensor:
        sizes = self._sizes(x.numel())
        parts = [self.codec.encode(part, derive_key(key, i)) for i, part in enumerate(x.split(sizes))]
        if self.fixed_size:
            return to_bytes(*parts)
        lengths = torch.tensor([part.numel() for part in parts], dtype=torch.int32, device=x.device)
        return to_bytes(lengths, *parts)

    def decode(self, payload: Tensor, n: int) -> Tensor:
        sizes = self._sizes(n)
        parts = zip(self._split(payload, sizes, n), sizes, strict=True)
        return torch.cat([self.codec.decode(part, size) for part, size in parts])

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        sizes = self._sizes(out.numel())
        parts = zip(self._split(payload, sizes, out.numel()), out.split(sizes), strict=True)
        for part, segment in parts:
            self.codec.decode_add(part, segment, alpha)

    def _sizes(self, n: int) -> list[int]:
        sizes = list(self.sizes) or [n]
        if sum(sizes) != n:
            raise ValueError(f"per-tensor: a vector of {n} values given; tensors of {sum(sizes)} in all fit")
        return sizes

    def _split(self, payload: Tensor, sizes: list[int], n: int) -> tuple[Tensor, ...]:
        if self.fixed_size:
            check_length(payload, self.max_bytes(n), n, self)
            return payload.split([self.codec.max_bytes(size) for size in sizes])
        header = 4 * len(sizes)
        check_header(payload, header, n, self)
        lengths = from_bytes(payload[:header], torch.int32).tolist()
        if min(lengths) < 0 or sum(lengths) != payload.numel() - header:
            raise PayloadError(f"per-tensor: lengths {lengths} in a message of {payload.numel()} bytes")
        return payload[header:].split(lengths)
