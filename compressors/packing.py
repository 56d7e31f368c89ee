"""Integers of any width to bytes and back, vectorised; tensors to bytes and back.

Layout of `n` codes of `width` bits:

    width = 8 + rest    the low byte of every code (n bytes), then the rest, packed the same way
    width < 8           one plane per set bit of width, widest first, which takes the lowest bits of the code:
                        3 = bits 0-1 | bit 2,  5 = bits 0-3 | bit 4,  6 = bits 0-3 | bits 4-5, ...

A plane of p = 1, 2 or 4 bits per value has m = ceil(n p / 8) bytes; byte i holds, from its lowest bits up,
values i, i + m, i + 2m, ... . Values that share a byte are far apart so that whole runs are shifted at once.
All multi-byte numbers are little-endian, as on every machine that torch runs on.
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_bytes(n: int, width: int) -> int:
    """Bytes of n packed codes of `width` bits: n * width / 8, each plane rounded up."""
    return n * (width // 8) + sum((n * p + 7) // 8 for p in (4, 2, 1) if width & p)


def pack(codes: Tensor, width: int) -> list[Tensor]:
    """uint8 [n] (int32 if width > 8) with 0 <= codes < 2**width -> the uint8 planes, in order.

    The planes may share memory with `codes`: join them with `to_bytes`.
    """
    planes = []
    while width > 8:
        planes.append(codes.bitwise_and(255).to(torch.uint8))
        codes = codes.bitwise_right_shift(8)
        width -= 8
    codes = codes.to(torch.uint8)
    if width == 8:
        return [*planes, codes]
    shift = 0
    for p in (4, 2, 1):
        if width & p:
            field = codes if width == p else codes.bitwise_right_shift(shift).bitwise_and_((1 << p) - 1)
            planes.append(_pack_plane(field, p))
            shift += p
    return planes


def unpack(data: Tensor, n: int, width: int) -> Tensor:
    """Inverse of `pack`: uint8 [packed_bytes(n, width)] -> fresh uint8 [n] (int32 [n] if width > 8)."""
    if width == 8:
        return data.clone()
    if width > 8:
        high = unpack(data[n:], n, width - 8).to(torch.int32)
        return high.bitwise_left_shift_(8).bitwise_or_(data[:n])
    codes, shift = None, 0
    for p in (4, 2, 1):
        if width & p:
            size = (n * p + 7) // 8
            plane = _unpack_plane(data[:size], n, p)
            data = data[size:]
            codes = plane if codes is None else codes.bitwise_or_(plane.bitwise_left_shift_(shift))
            shift += p
    assert codes is not None
    return codes


def _pack_plane(codes: Tensor, p: int) -> Tensor:
    m = (codes.numel() * p + 7) // 8
    packed = codes[:m].clone()
    for j in range(1, 8 // p):
        run = codes[j * m : (j + 1) * m]
        packed[: run.numel()].add_(run, alpha=1 << (p * j))
    return packed


def _unpack_plane(packed: Tensor, n: int, p: int) -> Tensor:
    m = packed.numel()
    codes = packed.new_empty(n)
    for j in range(8 // p):
        run = codes[j * m : (j + 1) * m]
        torch.bitwise_right_shift(packed[: run.numel()], p * j, out=run)
    return codes.bitwise_and_((1 << p) - 1)


def to_bytes(*parts: Tensor) -> Tensor:
    """The parts' bytes, one after the other, as a fresh uint8 vector."""
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [k * itemsize] -> [k] of `dtype`; a view where the alignment allows it."""
    if data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)
