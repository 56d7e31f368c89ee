"""Reading pickles that came from outside: numpy arrays and plain containers, nothing else.

A pickle can name any callable to be run. This unpickler lets through only the few names with which numpy
writes arrays, and what it puts in their place are the small classes below: none of numpy's own
unpickling code ever sees the file's values.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"})


class _Dtype:
    """What a pickled ``numpy.dtype`` becomes: the name of a plain number type."""

    def __init__(self, name: Any, *_flags: Any) -> None:
        name = name.decode("ascii") if isinstance(name, bytes) else name
        if name not in DTYPES:
            raise pickle.UnpicklingError(f"an array of {name!r}: only plain numbers are read")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """What a pickled ``numpy.ndarray`` becomes: its values, once the file has given them."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, raw = state
        self.fill(raw, dtype, shape, "F" if fortran else "C")

    def fill(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        order = order.decode("ascii") if isinstance(order, bytes) else order
        if not (isinstance(raw, bytes | bytearray) and isinstance(dtype, _Dtype) and order in ("C", "F")):
            raise pickle.UnpicklingError("an array that numpy has not written")
        self.value = np.frombuffer(raw, dtype.dtype).reshape(shape, order=order)


def _reconstruct(_class: Any, _shape: Any, _code: Any) -> _Array:
    return _Array()


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """An array as pickle protocol 5 writes it."""
    array = _Array()
    array.fill(raw, dtype, shape, order)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    """Bytes as Python 3 writes them in protocol 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return str(text).encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}, which no array needs")
        return ADMITTED[module, name]


def load(data: bytes) -> dict[str, Any]:
    """The dict pickled in `data` by Python 2 or 3, any protocol.

    Keys come as `str`, arrays as read-only `numpy.ndarray` of plain numbers, Python 2's strings as `bytes`.

    Raises:
        pickle.UnpicklingError: damaged data, anything but a dict, or a pickle that asks for more than arrays
            and containers; nothing of it has been run.
    """
    try:
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # damaged pickles raise nearly everything
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise pickle.UnpicklingError(f"it holds a {type(found).__name__}, not a dict")
    return {
        key.decode("latin1") if isinstance(key, bytes) else str(key): value.value
        if isinstance(value, _Array)
        else value
        for key, value in found.items()
    }
