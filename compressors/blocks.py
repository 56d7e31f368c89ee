"""A vector as rows of `block` values; each row has its own scale."""

from __future__ import annotations

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


def max_abs(rows: Tensor) -> Tensor:
    """max |x| of each row, never -0. Two reductions are faster than |x|; NaN and inf come through."""
    return rows.amax(1).maximum(rows.amin(1).neg_()).abs_()
