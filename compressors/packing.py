"""Integers of any width to bytes and back, vectorised; tensors to bytes and back.

Layout of `n` codes of `width` bits:

    width = 8 + rest    the low byte of every code (n bytes), then the rest, packed the same way
    width < 8           one plane per set bit of width, widest first, which takes the lowest bits of the code:
                        3 = bits 0-1 | bit 2,  5 = bits 0-3 | bit 4,  6 = bits 0-3 | bits 4-5, ...

A plane of p = 1, 2 or 4 bits per value is made chunk by chunk of 512 values. A chunk of c values (only the
last has fewer than 512) has m = ceil(c p / 8) bytes; its byte i holds, from its lowest bits up, the chunk's
values i, i + m, i + 2m, ... . Values that share a byte are apart so that whole runs are shifted at once, and
not far apart so that a chunk is packed while it is in cache.
All multi-byte numbers are little-endian, as on every machine that torch runs on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import CHUNK


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


def pack_into(planes: Tensor, codes: Tensor, width: int, start: int, n: int) -> None:
    """Write some of n codes, from `start`, a multiple of 512, on, into uint8 [packed_bytes(n, width)]."""
    for (base, p), plane in zip(_bases(n, width), pack(codes, width), strict=True):
        at = base + start * p // 8
        planes[at : at + plane.numel()] = plane


def unpack_part(planes: Tensor, width: int, start: int, stop: int, n: int) -> Tensor:
    """Codes start..stop-1 of n, `start` a multiple of 512: what `unpack` gives for all, cut out."""
    parts = []
    for base, p in _bases(n, width):
        at = base + start * p // 8
        parts.append(planes[at : at + ((stop - start) * p + 7) // 8])
    return unpack(torch.cat(parts), stop - start, width)


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


def _bases(n: int, width: int) -> list[tuple[int, int]]:
    """Of each plane, in order: where it starts, and its bits per value."""
    bases, at = [], 0
    for p in [8] * (width // 8) + [p for p in (4, 2, 1) if width & p]:
        bases.append((at, p))
        at += (n * p + 7) // 8
    return bases


def _pack_plane(codes: Tensor, p: int) -> Tensor:
    n = codes.numel()
    whole = n // CHUNK * CHUNK
    packed = codes.new_empty((n * p + 7) // 8)
    if whole:
        runs = codes[:whole].view(-1, 8 // p, CHUNK * p // 8)
        _join(list(runs.unbind(1)), p, packed[: whole * p // 8].view(-1, CHUNK * p // 8))
    if whole < n:
        rest = packed[whole * p // 8 :]
        _join(list(codes[whole:].split(rest.numel())), p, rest)
    return packed


def _join(runs: list[Tensor], p: int, out: Tensor) -> None:
    """out = runs[0] + (runs[1] << p) + ...; the last runs may be shorter than `out`, or missing."""
    out.copy_(runs[0])
    for j, run in enumerate(runs[1:], 1):
        out[..., : run.shape[-1]].add_(run, alpha=1 << (p * j))


def _unpack_plane(packed: Tensor, n: int, p: int) -> Tensor:
    whole = n // CHUNK * CHUNK
    codes = packed.new_empty(n)
    if whole:
        runs = codes[:whole].view(-1, 8 // p, CHUNK * p // 8)
        _part(packed[: whole * p // 8].view(-1, CHUNK * p // 8), p, list(runs.unbind(1)))
    if whole < n:
        rest = packed[whole * p // 8 :]
        _part(rest, p, list(codes[whole:].split(rest.numel())))
    return codes.bitwise_and_((1 << p) - 1)


def _part(packed: Tensor, p: int, runs: list[Tensor]) -> None:
    """Inverse of `_join`, up to the bits above p."""
    for j, run in enumerate(runs):
        torch.bitwise_right_shift(packed[..., : run.shape[-1]], p * j, out=run)


def to_bytes(*parts: Tensor) -> Tensor:
    """The parts' bytes, one after the other, as a fresh uint8 vector."""
    return torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [k * itemsize] -> [k] of `dtype`; a view where the alignment allows it."""
    if data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)
