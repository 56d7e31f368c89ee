"""What one rank measures about itself: times, bytes, compression error, and whether compression pays."""

from __future__ import annotations

import math
import time
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gossip.trace import Trace

SAMPLE_ERROR_EVERY = 10
"""The compression error costs two passes over the message, so one round in ten is measured."""


class Stats:
    """Seconds spent in the current step, gathered into per-step lists by `end_step`.

    `encode`, `decode`, `mix` and `exposed` (waiting with nothing left to compute) are running sums that the
    engine and the node add to; `take` hands out and clears an interval. `trace`, where there is one, is told
    each piece of time by itself.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.encode = self.decode = self.mix = self.exposed = 0.0
        self.bytes_sent = self.messages_sent = 0
        self.saved_bytes = 0
        """What compressed messages would have had more in 32 bit, since the start."""
        self.codec_seconds = 0.0
        """Encoding and decoding, since the start."""
        self._clear()

    def _clear(self) -> None:
        parts = ("encode_ms", "decode_ms", "mix_ms", "exposed_wait_ms")
        self._steps = {part: array("d") for part in parts}  # small: a loop that never takes them is no leak
        self._errors: Tensor | None = None
        self._by_neighbor: defaultdict[int, float] = defaultdict(float)
        self._bytes_taken, self._messages_taken = self.bytes_sent, self.messages_sent

    def spent(self, part: Literal["encode", "decode", "mix"], start: float, label: str) -> None:
        """Book the seconds since `start` (time.perf_counter) to `part`; `label` tells a trace on what."""
        end = time.perf_counter()
        setattr(self, part, getattr(self, part) + end - start)
        if self.trace is not None:
            self.trace.span(part, label, start, end)

    @property
    def busy(self) -> float:
        """Seconds of the framework's own work in the current step."""
        return self.encode + self.decode + self.mix

    def waited_for(self, rank: int, seconds: float) -> None:
        """Exposed time until `rank`'s message came (waits for several ranks overlap)."""
        self._by_neighbor[rank] += seconds

    def samples_error(self, t: int) -> bool:
        """Whether `sample_error` is to be called in round t."""
        return t % SAMPLE_ERROR_EVERY == 1

    def sample_error(self, v: Tensor, decoded: Tensor) -> None:
        """Measure ‖v − C(v)‖/‖v‖, without leaving the device; what overflows does not count."""
        norm = torch.linalg.vector_norm(v)
        error = torch.where(norm > 0, torch.linalg.vector_norm(v - decoded) / norm, norm).double()
        one = torch.stack([torch.nan_to_num(error, 0.0, 0.0, 0.0), error.isfinite().double()])  # sum, count
        self._errors = one if self._errors is None else self._errors + one

    def end_step(self) -> None:
        """Close the books of one optimizer step."""
        for name, seconds in zip(
            self._steps, (self.encode, self.decode, self.mix, self.exposed), strict=True
        ):
            self._steps[name].append(seconds * 1e3)
        self.codec_seconds += self.encode + self.decode
        self.encode = self.decode = self.mix = self.exposed = 0.0

    def compression_loss(self, saved: int, bytes_per_second: float) -> str | None:
        """A warning if the codec took longer than sending the `saved` bytes would, on a link this fast."""
        saved = max(0, saved)
        saved_seconds = saved / bytes_per_second if bytes_per_second else math.inf
        if not saved_seconds < self.codec_seconds:
            return None
        return (
            f"compression cost more time than it saved: {self.codec_seconds:.3g} s to encode and decode, and "
            f"the {saved / 1e6:.3g} MB saved would have taken at most {saved_seconds:.3g} s, as "
            f"this link has carried {8e-9 * bytes_per_second:.3g} Gbit/s. Without a compressor, or with a "
            "cheaper one, this run would be faster."
        )

    def take(self) -> dict[str, Any]:
        """The interval since the last call.

        Returns ``encode_ms``, ``decode_ms``, ``mix_ms``, ``exposed_wait_ms`` (lists, one entry per step),
        ``steps``, ``wait_ms_by_neighbor`` (rank -> summed ms), ``bytes_sent``, ``messages_sent`` (this rank,
        summed over destinations) and ``compression_error`` (mean of the sampled ‖v − C(v)‖/‖v‖; None if
        nothing was compressed, or only values whose squares overflow).
        """
        interval: dict[str, Any] = {part: each.tolist() for part, each in self._steps.items()}
        interval["steps"] = len(self._steps["encode_ms"])
        interval["wait_ms_by_neighbor"] = {j: s * 1e3 for j, s in sorted(self._by_neighbor.items())}
        interval["bytes_sent"] = self.bytes_sent - self._bytes_taken
        interval["messages_sent"] = self.messages_sent - self._messages_taken
        total, count = (0.0, 0.0) if self._errors is None else self._errors.tolist()
        interval["compression_error"] = total / count if count else None
        self._clear()
        return interval
