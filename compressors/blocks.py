"""A vector as rows of `block` values; each row has its own scale."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def check_block(name: str, block: int | str) -> None:
    """Raise ValueError unless `block` is a positive int or `tensor` (the whole vector is one block)."""
    if block != "tensor" and (not isinstance(block, int) or block < 1):
        raise ValueError(f"{name}: block={block} given; a positive number or `tensor` fits, e.g. {name}:block=512")


def block_shape(n: int, block: int | str) -> tuple[int, int]:
    """(rows, columns) that hold n values; the last row may be longer than what is left for it."""
    columns = n if isinstance(block, str) else min(block, n)
    return (-(-n // columns), columns) if n else (0, 1)


def to_blocks(x: Tensor, block: int | str, repeat_last: bool = False) -> Tensor:
    """A fresh copy of x [n] as [rows, columns], filled up with zeros, or with copies of the last value."""
    n = x.numel()
    rows, columns = block_shape(n, block)
    blocks = x.new_empty(rows * columns)
    blocks[:n] = x
    if n < rows * columns:
        blocks[n:] = x[-1] if repeat_last else 0
    return blocks.view(rows, columns)


def block_counts(n: int, block: int | str, device: torch.device) -> Tensor:
    """float32 [rows, 1]: how many of each row's values are not filling."""
    rows, columns = block_shape(n, block)
    counts = torch.full((rows, 1), float(columns), device=device)
    counts[-1:] -= rows * columns - n
    return counts


def max_abs(blocks: Tensor) -> Tensor:
    """max |x| of each row, [rows, 1]. (Two reductions, and no copy for |x|; NaN and inf come through.)"""
    return torch.maximum(blocks.amax(1, keepdim=True), blocks.amin(1, keepdim=True).neg_())


def nonzero(scales: Tensor) -> Tensor:
    """The scales, with 1 in place of 0: a row of zeros is divided by 1."""
    return scales.masked_fill(scales == 0, 1)


def by_rows(values: Tensor, columns: int) -> Iterator[tuple[Tensor, slice]]:
    """Views of values [n] as [rows, columns], the short last row apart, with the rows they are."""
    whole = values.numel() // columns
    if whole:
        yield values[: whole * columns].view(whole, columns), slice(0, whole)
    if whole * columns < values.numel():
        yield values[whole * columns :].view(1, -1), slice(whole, whole + 1)


def scale_rows_(values: Tensor, scales: Tensor, columns: int) -> Tensor:
    """values [n] times the scale of their row, scales [rows]; in place."""
    for part, row in by_rows(values, columns):
        part.mul_(scales[row, None])
    return values
