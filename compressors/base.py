"""The Compressor contract, its registry, and what every codec file shares.

A codec is a frozen dataclass of its options, registered under the name used on the command line:

    @register("sign")
    @dataclass(frozen=True)
    class Sign(Compressor):
        block: int | str = option(512, "values that share one scale, or `tensor`")
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor

CODECS: dict[str, type[Compressor]] = {}

_C = TypeVar("_C", bound="type[Compressor]")


Shape = tuple[int, ...]
"""Of a parameter tensor."""


@dataclass(frozen=True)
class PaperSize:
    """The bytes of a message by a paper's own law, and that law in words."""

    bytes: float
    law: str


class NonFiniteError(ValueError):
    """The vector to encode holds NaN or inf."""


class PayloadError(ValueError):
    """The bytes to decode are not a message of this codec for a vector of this length."""


def register(name: str) -> Callable[[_C], _C]:
    """Class decorator: make the codec known as `name` in CODECS and in spec strings."""

    def add(cls: _C) -> _C:
        if name in CODECS:
            raise ValueError(f"two codecs are named {name!r}")
        cls.name = name
        CODECS[name] = cls
        return cls

    return add


def option(default: Any, help: str) -> Any:
    """A dataclass field that users can set in a spec, with its one line of help."""
    return field(default=default, metadata={"help": help})


class Compressor(ABC):
    """A stateless map C from float32 vectors to bytes; knows nothing of ranks, algorithms or error feedback.

    Subclasses are frozen dataclasses: hashable, picklable, equal when their options are equal.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    unbiased: ClassVar[bool] = False  # E C(v) = v over the keys
    lossless: ClassVar[bool] = False  # C(v) = v, bit for bit
    relative_noise: ClassVar[bool] = True  # ||v - C(v)|| grows with ||v||
    fixed_size: ClassVar[bool] = True  # a payload always has max_bytes(n) bytes

    @abstractmethod
    def max_bytes(self, n: int) -> int:
        """Bytes of the message for n values; an upper bound where `fixed_size` is False."""

    @abstractmethod
    def encode(self, x: Tensor, key: int) -> Tensor:
        """float32 [n] -> fresh uint8 [m] on the same device, m <= max_bytes(n); x is left untouched.

        All noise comes from the 64-bit `key`: the same x and key give the same bytes, and no global random
        generator is read or moved. Raises NonFiniteError if x holds NaN or inf.
        """

    @abstractmethod
    def decode(self, payload: Tensor, n: int) -> Tensor:
        """uint8 [m] -> fresh float32 [n]. Raises PayloadError if the bytes cannot be such a message."""

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        """out += alpha * decode(payload, len(out)), in place; bitwise `out += decode(...)` at alpha = 1."""
        out.add_(self.decode(payload, out.numel()), alpha=alpha)

    def for_segments(self, sizes: Sequence[int]) -> Compressor:
        """This codec for a vector made of tensors of these sizes. Most codecs do not look at them."""
        return self

    def paper_size(self, shapes: Sequence[Shape]) -> PaperSize:
        """The message about tensors of these shapes, in the model's order, as the paper counts it.

        Where the paper's count is no other: what is sent, at most.
        """
        sizes = [math.prod(shape) for shape in shapes]
        message = self.for_segments(sizes).max_bytes(sum(sizes))
        return PaperSize(message, f"one {self.name} message of all values")

    def contraction_gamma(self) -> float:
        """Default consensus step gamma_c of CHOCO-like methods with this codec.

        CHOCO's theory asks for a contraction E||v - C(v)||^2 <= (1 - delta) ||v||^2. Here delta comes from
        the relative error alpha measured on Gaussian data: 1 - alpha^2 for a biased codec, 1/(1 + alpha^2)
        for an unbiased one (what is left when it is scaled down by 1 + omega, omega = alpha^2).
        """
        noise = relative_error(self) ** 2
        return gamma_of(1 / (1 + noise) if self.unbiased else 1 - noise)

    def __str__(self) -> str:
        """The canonical spec, e.g. `qsgd:bits=8,norm=max,block=512`; unset options are left out."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if "help" in f.metadata]  # type: ignore[arg-type]
        options = ",".join(f"{name}={_spec_value(value)}" for name, value in given if value is not None)
        return f"{self.name}:{options}" if options else self.name


def _spec_value(value: object) -> str:
    text = str(value)
    if isinstance(value, bool):
        return text.lower()
    return f"({text})" if isinstance(value, Compressor) and ":" in text else text


def check_finite(scales: Tensor, codec: Compressor) -> None:
    """Raise NonFiniteError unless all `scales`, which any NaN or inf of the input must reach, are finite.

    Called after the kernels of an encode are queued: on CUDA this is the one synchronisation of an encode.
    """
    if not bool(torch.isfinite(scales).all()):
        raise_nonfinite(codec)


def raise_nonfinite(codec: Compressor) -> NoReturn:
    """Raise the NonFiniteError of `codec`."""
    raise NonFiniteError(f"{codec.name}: the vector to encode holds NaN or inf")


def all_finite(x: Tensor) -> bool:
    """Whether x holds neither NaN nor inf: a sum is finite only if all its terms are.

    The sum costs a part of a copy; finite values can overflow it, and only then x is looked at one by one.
    """
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def check_all_finite(x: Tensor, codec: Compressor) -> None:
    """check_finite for codecs without scales."""
    if not all_finite(x):
        raise_nonfinite(codec)


def slabs(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Vectors of one length in pieces that stay in cache over several passes; whole ones on a GPU."""
    length = (1 << 17) * torch.get_num_threads() if vectors[0].device.type == "cpu" else vectors[0].numel()
    return zip(*(v.split(max(1, length)) for v in vectors), strict=True)


def check_length(payload: Tensor, expected: int, n: int, codec: Compressor) -> None:
    """Raise PayloadError unless `payload` is uint8 [expected]."""
    if payload.dtype != torch.uint8 or payload.dim() != 1 or payload.numel() != expected:
        raise PayloadError(
            f"{codec.name}: {expected} bytes expected for {n} values, "
            f"got {payload.dtype} of shape {tuple(payload.shape)}"
        )


def check_header(payload: Tensor, least: int, n: int, codec: Compressor) -> None:
    """Raise PayloadError unless `payload` is uint8 [least or more]; for messages of varying length."""
    if payload.dtype != torch.uint8 or payload.dim() != 1 or payload.numel() < least:
        raise PayloadError(
            f"{codec.name}: {least} bytes or more expected for {n} values, "
            f"got {payload.dtype} of shape {tuple(payload.shape)}"
        )


def relative_error(codec: Compressor, n: int = 65536, seed: int = 0) -> float:
    """alpha = ||v - C(v)|| / ||v||, measured once on v ~ N(0, 1)^n drawn from `seed`.

    Real updates have heavier tails, for which quantizers do worse and sparsifiers better.
    """
    v = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    codec = codec.for_segments((n,))
    error = v - codec.decode(codec.encode(v, seed), n)
    return float(error.double().norm() / v.double().norm())


def gamma_of(delta: float) -> float:
    """gamma_c for a contraction by 1 - delta: 1 from delta = 0.95 on (4 bits, max-norm), else 0.7 delta.

    0.7 is sign's ratio (delta = 2/pi, tuned gamma_c = 0.45) in Koloskova et al. 2020, arXiv 1907.09356.
    """
    return 1.0 if delta >= 0.95 else round(0.7 * delta, 3)
