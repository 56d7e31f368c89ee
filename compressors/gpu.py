"""The kernels for CUDA, in Triton, which torch's CUDA builds for Linux bring along; the same bytes.

One program takes a few chunks of 512 values through all steps in registers: block maximum or sum, codes,
planes. It covers whole chunks; the rest of a vector is left to torch (rows.py).
Floating-point contraction is switched off at every launch (`enable_fp_fusion`).
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .kernels import CHUNK
from .noise import _signed, key_words
from .rules import Rule
from .stats import MAX, MEAN, Stat

CHUNKS = 4
"""Per program."""


@cache
def available() -> bool:
    """Whether Triton is there."""
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether these tensors are on one CUDA device, contiguous, and Triton is there."""
    return all(t.is_cuda and t.is_contiguous() for t in tensors) and available()


def fuses(stat: Stat, columns: int) -> bool:
    """Whether `encode` computes the tables too; else they come from stats.row_tables."""
    return columns == CHUNK and stat in (MAX, MEAN)


def encode(x: Tensor, payload: Tensor, columns: int, stat: Stat, rule: Rule, key: int, fused: bool) -> int:
    """Tables (if `fused`) and planes of the whole chunks of x; returns how many values that are."""
    n = x.numel()
    whole, rows = n // CHUNK * CHUNK, -(-n // columns)
    size = 4 * rows * stat.tables
    key0, key1 = key_words(key)
    if whole:
        _launch(
            "encode_kernel",
            whole,
            x,
            payload[: size or 4].view(torch.float32),
            payload[size:],
            n,
            rows,
            columns,
            rule.bound,
            rule.offset,
            _signed(key0),
            _signed(key1),
            STAT=(1 if stat is MAX else 2) if fused else 0,
            CODE=rule.code,
            WIDTH=rule.width,
            SHIFT=rule.shift,
            NEAREST=rule.nearest,
        )
    return whole


def decode(
    payload: Tensor, tables: Tensor, out: Tensor, columns: int, rule: Rule, alpha: float, add: bool
) -> int:
    """Decode the whole chunks into `out`, or add them; `tables` [tables, rows], `payload` only the planes."""
    n = out.numel()
    whole = n // CHUNK * CHUNK
    if whole:
        _launch(
            "decode_kernel",
            whole,
            payload,
            tables if tables.numel() else out,
            out,
            n,
            tables.shape[1],
            columns,
            rule.step,
            alpha,
            CODE=rule.back,
            TABLES=tables.shape[0],
            WIDTH=rule.width,
            LEVELS=rule.offset >> rule.shift if rule.shift else 0,
            ADD=add,
        )
    return whole


def _launch(name: str, values: int, *args: Any, **constants: Any) -> None:
    grid = (-(-values // (CHUNK * CHUNKS)),)
    getattr(_kernels(), name)[grid](*args, CHUNKS=CHUNKS, **constants, num_warps=4, enable_fp_fusion=False)


@cache
def _kernels() -> Any:
    return importlib.import_module("._triton", __package__)
