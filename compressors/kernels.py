"""The C kernels of _kernels.c: finding, calling and switching them off. Without them torch does the same.

They are built at install where there is a C compiler (setup.py). Both ways give the same bytes, so ranks may
differ in this. `GOSSIP_KERNELS=off` in the environment or `with disabled():` forces the torch code.
"""

from __future__ import annotations

import ctypes
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

ABI = 3
"""Of _kernels.c; a library built from another version is not used."""

CHUNK = 512
"""Values that are packed together, and that make one partial sum."""

LONGEST_ROW = CHUNK * CHUNK
"""Longer rows are reduced chunk by chunk; the kernels' own sums have two levels."""

TILE = 1 << 15
"""Values per piece of work, about: 128 KB, which stays in a core's cache between two passes."""

PER_THREAD = 1 << 17
"""Values that are worth another thread: about 0.1 ms, starting one costs 0.02."""


class Job(ctypes.Structure):
    """The same as `struct job` in _kernels.c; every pointer is to memory that outlives the call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out", "payload", "stats")),
        *((name, ctypes.c_void_p) for name in ("index", "counts", "places", "groups")),
        *((name, ctypes.c_int64) for name in ("n", "block", "tile")),
        *((name, ctypes.c_int32) for name in ("stat", "code", "width", "tables", "do_tables", "do_codes")),
        *((name, ctypes.c_int32) for name in ("nearest", "add", "threads", "shift", "offset")),
        *((name, ctypes.c_float) for name in ("bound", "step", "alpha")),
        ("least", ctypes.c_int32),
        ("clip", ctypes.c_double),
        *((name, ctypes.c_uint32) for name in ("key0", "key1")),
        ("next", ctypes.c_int64),
        ("bad", ctypes.c_int32),
    )


_TYPES = (torch.float32, torch.uint8, torch.int32)  # a kernel is told where vectors are, not what they hold
_off = False
_told = False  # this process has warned, or need not


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, all threads of this process encode and decode with torch only."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before


def status() -> str:
    """What encodes and decodes on CPUs, in words; for reports."""
    library, why = _load()
    return f"C kernels ({library._name})" if library is not None else f"torch ({why})"


def built() -> bool:
    """Whether the library is there, of the right version, and not switched off by the environment."""
    return _load()[0] is not None


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels are there, and these tensors on the CPU, contiguous, of types they take."""
    if _off or not all(t.device.type == "cpu" and t.is_contiguous() and t.dtype in _TYPES for t in tensors):
        return False
    library, why = _load()
    if library is None:
        _tell_if_missing(why)
    return library is not None


def lib() -> ctypes.CDLL:
    """The library; only when `usable`."""
    library = _load()[0]
    assert library is not None
    return library


def job(n: int, tile: int, **values: object) -> Job:
    """A Job of n values in tiles of `tile`, with as many threads as torch has and the length is worth."""
    threads = max(1, min(torch.get_num_threads(), n // PER_THREAD, -(-n // tile)))
    return Job(n=n, tile=tile, threads=threads, **values)


def tile_of(columns: int) -> int:
    """About TILE values that are whole rows of `columns` and whole chunks; may be far longer."""
    both = math.lcm(columns, CHUNK)
    return both * max(1, TILE // both)


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    if os.environ.get("GOSSIP_KERNELS", "").lower() in ("off", "0"):
        return None, "GOSSIP_KERNELS=off"
    paths = sorted(Path(__file__).parent.glob("_kernels.*"))
    why = "the C kernels are not built"
    for path in paths:
        if path.suffix not in (".so", ".pyd", ".dylib"):
            continue
        try:
            library = ctypes.CDLL(str(path))
            built = library.gossip_abi(), library.gossip_job_bytes()
        except (OSError, AttributeError) as error:
            why = f"the C kernels do not load: {error}"
            continue
        if built != (ABI, ctypes.sizeof(Job)):
            why = f"{path.name} is of another version"
            continue
        library.gossip_select.restype = ctypes.c_int64
        for name in (
            *("encode", "decode", "stats", "select", "noise"),
            *("grid_widths", "grid_encode", "grid_decode"),
        ):
            getattr(library, f"gossip_{name}").argtypes = [ctypes.POINTER(Job)]
        return library, ""
    return None, why


def say_nothing() -> None:
    """Do not warn in this process that the kernels are missing: another one of the same job does."""
    global _told
    _told = True


def _tell_if_missing(why: str) -> None:
    global _told
    if _told or why.startswith("GOSSIP_KERNELS"):
        return
    _told = True
    warnings.warn(
        f"compressors: {why}; torch encodes and decodes instead: the same bytes, several times slower. "
        "To build them, install a C compiler, then this package again (pip install --force-reinstall "
        "--no-deps, or `make` after `make clean`).",
        RuntimeWarning,
        stacklevel=3,
    )
