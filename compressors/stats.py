"""What a block's scales are computed from: its largest value, its sum of squares, ... and in which order.

A `Stat` is reduced in two steps: `parts` of the rows of a matrix, float64 [k, rows], which can be combined
where a row was cut into pieces; then `tables`, the float32 numbers that travel. Maxima do not depend on any
order; sums do, in the last bit, so there is one order for all devices and thread counts (`tree_sum`).
The C kernels compute the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .blocks import max_abs
from .kernels import CHUNK, LONGEST_ROW

_FLOAT32_MAX = torch.finfo(torch.float32).max


def tree_sum(v: Tensor) -> Tensor:
    """Row sums of float64 [r, c] -> [r], in a fixed order: chunks of 512 by halves, then their sums likewise.

    By halves: the first half plus the second, elementwise, until one value is left, as if zeros filled the
    row up to a power of two. The error grows with log c, and every step is a vector operation.
    """
    rows, columns = v.shape
    if columns > CHUNK:
        chunks = -(-columns // CHUNK)
        padded = _filled(v, chunks * CHUNK).view(rows * chunks, CHUNK)
        return tree_sum(tree_sum(padded).view(rows, chunks))
    half = 1 << max(columns - 1, 0).bit_length()
    v = _filled(v, half)
    while half > 1:
        half //= 2
        v = v[:, :half] + v[:, half:]
    return v[:, 0]


def _filled(v: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(v, (0, columns - v.shape[1])) if v.shape[1] < columns else v


@dataclass(frozen=True)
class Stat:
    """One kind of block statistic.

    Attributes:
        code: its number in _kernels.c.
        tables: float32 numbers per block that travel.
        how: of each part, how the pieces of a row are combined: "max", "min" or "sum".
        parts: float32 [r, c] -> float64 [k, r]; any NaN or inf of a row must reach its parts.
        finish: parts, lengths of the rows (float64, broadcastable) -> `tables` vectors, rounded to float32.
        clip: a parameter of `finish`, for the kernels.
    """

    code: int
    tables: int
    how: tuple[str, ...]
    parts: Callable[[Tensor], Tensor]
    finish: Callable[[Tensor, Tensor], list[Tensor]]
    clip: float = 0.0

    def combine(self, parts: Tensor) -> Tensor:
        """Parts of the pieces of one row, of 512 values each, [k, pieces] -> of the row, [k, 1]."""
        reduce = {"max": torch.amax, "min": torch.amin}
        return torch.stack(
            [
                tree_sum(p[None])[:, None][0] if how == "sum" else reduce[how](p, 0, keepdim=True)
                for how, p in zip(self.how, parts, strict=True)
            ]
        )


def _squares(rows: Tensor) -> Tensor:
    v = rows.to(torch.float64)
    return tree_sum(v * v)


def _means_parts(rows: Tensor) -> Tensor:
    above = rows.ge(0)
    v = rows.to(torch.float64)
    high = tree_sum(v.masked_fill(~above, 0))
    low = tree_sum(v.neg().masked_fill(above, 0))
    return torch.stack([high, low, above.sum(1).to(torch.float64)])


def _means(parts: Tensor, lengths: Tensor) -> list[Tensor]:
    high, low, count = parts
    return [high / count.clamp(min=1), (0.0 - low) / (lengths - count).clamp(min=1)]


def clipped(clip: float) -> Stat:
    """`clip` root mean squares of the block, at most its largest magnitude."""

    def parts(rows: Tensor) -> Tensor:
        return torch.stack([max_abs(rows).to(torch.float64), _squares(rows)])

    def finish(parts: Tensor, lengths: Tensor) -> list[Tensor]:
        return [torch.minimum((parts[1] / lengths).sqrt() * clip, parts[0])]

    return Stat(3, 1, ("max", "sum"), parts, finish, clip)


NONE = Stat(0, 0, (), lambda rows: rows.new_empty(0), lambda parts, lengths: [])
MAX = Stat(1, 1, ("max",), lambda rows: max_abs(rows).to(torch.float64)[None], lambda parts, _: [parts[0]])
L2 = Stat(
    2,
    1,
    ("sum",),
    lambda rows: _squares(rows)[None],
    lambda parts, _: [parts[0].sqrt().clamp(max=_FLOAT32_MAX)],
)
RANGE = Stat(  # + 0 makes 0 of -0
    4,
    2,
    ("min", "max"),
    lambda rows: torch.stack([rows.amin(1), rows.amax(1)]).to(torch.float64),
    lambda parts, _: [parts[0] + 0.0, parts[1] + 0.0],
)
MEAN = Stat(
    5,
    1,
    ("sum",),
    lambda rows: tree_sum(rows.to(torch.float64).abs_())[None],
    lambda parts, lengths: [parts[0] / lengths],
)
MEANS = Stat(6, 2, ("sum", "sum", "sum"), _means_parts, _means)


def row_tables(x: Tensor, columns: int, stat: Stat, slab: int) -> Tensor:
    """Statistics of all rows of x [n] by torch: float32 [tables, rows]; not finite where x is not.

    About `slab` values at a time, for their temporaries to stay small.
    """
    n = x.numel()
    per_slab = max(1, slab // columns) * columns
    tables = []
    for start in range(0, n, per_slab):
        part = x[start : start + per_slab]
        whole = part.numel() // columns
        for rows in (part[: whole * columns].view(whole, columns), part[whole * columns :].view(1, -1)):
            if rows.numel():
                parts = stat.parts(rows) if rows.shape[1] <= LONGEST_ROW else _long_row(rows, stat, slab)
                lengths = torch.tensor(float(rows.shape[1]), dtype=torch.float64, device=x.device)
                found = torch.stack(stat.finish(parts, lengths)).to(torch.float32)
                tables.append(found.masked_fill_(~torch.isfinite(parts).all(0), math.nan))
    return torch.cat(tables, 1)


def _long_row(row: Tensor, stat: Stat, slab: int) -> Tensor:
    """Parts of one long row [1, c], by its chunks of 512."""
    pieces = []
    for part in row[0].split(max(1, slab // CHUNK) * CHUNK):
        whole = part.numel() // CHUNK * CHUNK
        for rows in (part[:whole].view(-1, CHUNK), part[whole:].view(1, -1)):
            if rows.numel():
                pieces.append(stat.parts(rows))
    return stat.combine(torch.cat(pieces, 1))
