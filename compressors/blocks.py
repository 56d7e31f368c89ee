"""A vector as rows of `block` values; each row has its own scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def check_block(name: str, block: int | str) -> None:
    """Raise ValueError unless `block` is a positive int or `tensor` (the whole vector is one row)."""
    if block != "tensor" and (not isinstance(block, int) or block < 1):
        raise ValueError(
            f"{name}: block={block} given; a positive number or `tensor` fits, e.g. {name}:block=512"
        )


def block_shape(n: int, block: int | str) -> tuple[int, int]:
    """(rows, columns) that hold n values; the last row may be short of values."""
    columns = n if isinstance(block, str) else min(block, n)
    return (-(-n // columns), columns) if n else (0, 1)


def by_rows(values: Tensor, columns: int) -> Iterator[tuple[Tensor, slice]]:
    """Views of values [n] as [rows, columns], the short last row apart, with the rows they are."""
    whole = values.numel() // columns
    if whole:
        yield values[: whole * columns].view(whole, columns), slice(0, whole)
    if whole * columns < values.numel():
        yield values[whole * columns :].view(1, -1), slice(whole, whole + 1)


def reduce_rows(values: Tensor, columns: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """`reduce`, [r, c] -> [r], of all rows of values [n]: float32 [rows]."""
    reduced = [reduce(part) for part, _ in by_rows(values, columns)]
    return torch.cat(reduced) if reduced else values.new_empty(0, dtype=torch.float32)


def max_abs(rows: Tensor) -> Tensor:
    """max |x| of each row. Two reductions are faster than |x|; NaN and inf come through."""
    return torch.maximum(rows.amax(1), rows.amin(1).neg_())


def multiply_rows_(values: Tensor, factors: Tensor, columns: int) -> Tensor:
    """values [n] times the factor of their row, factors [rows]; in place."""
    for part, row in by_rows(values, columns):
        part.mul_(factors[row, None])
    return values


def divide_rows(values: Tensor, divisors: Tensor, columns: int) -> Tensor:
    """values [n] over the divisor of their row, divisors [rows]; a fresh vector. Rows with divisor 0 stay."""
    divisors = nonzero(divisors)
    quotients = torch.empty_like(values)
    for (part, row), (out, _) in zip(by_rows(values, columns), by_rows(quotients, columns), strict=True):
        torch.div(part, divisors[row, None], out=out)
    return quotients


def nonzero(scales: Tensor) -> Tensor:
    """The scales, with 1 in place of 0: what a row without extent is divided by."""
    return scales.masked_fill(scales == 0, 1)
