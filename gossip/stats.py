"""What one rank measures about itself: times, bytes, compression error."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

SAMPLE_ERROR_EVERY = 10
"""The compression error costs two passes over the message, so one round in ten is measured."""


class Stats:
    """Seconds spent in the current step, gathered into per-step lists by `end_step`.

    `encode`, `decode`, `mix` and `exposed` (waiting with nothing left to compute) are running sums that the
    engine and the node add to; `take` hands out and clears an interval.
    """

    def __init__(self) -> None:
        self.encode = self.decode = self.mix = self.exposed = 0.0
        self.bytes_sent = self.messages_sent = 0
        self._clear()

    def _clear(self) -> None:
        self._steps: dict[str, list[float]] = {
            "encode_ms": [],
            "decode_ms": [],
            "mix_ms": [],
            "exposed_wait_ms": [],
        }
        self._errors: list[Tensor] = []
        self._by_neighbor: defaultdict[int, float] = defaultdict(float)
        self._bytes_taken, self._messages_taken = self.bytes_sent, self.messages_sent

    def waited_for(self, rank: int, seconds: float) -> None:
        """Exposed time until `rank`'s message came (waits for several ranks overlap)."""
        self._by_neighbor[rank] += seconds

    def sample_error(self, v: Tensor, decoded: Tensor, t: int) -> None:
        """Measure ‖v − C(v)‖/‖v‖ now and then, without leaving the device."""
        if t % SAMPLE_ERROR_EVERY == 1 and v.numel():
            norm = torch.linalg.vector_norm(v)
            self._errors.append(torch.where(norm > 0, torch.linalg.vector_norm(v - decoded) / norm, norm))

    def end_step(self) -> None:
        """Close the books of one optimizer step."""
        for name, seconds in zip(
            self._steps, (self.encode, self.decode, self.mix, self.exposed), strict=True
        ):
            self._steps[name].append(seconds * 1e3)
        self.encode = self.decode = self.mix = self.exposed = 0.0

    def take(self) -> dict[str, Any]:
        """The interval since the last call.

        Returns ``encode_ms``, ``decode_ms``, ``mix_ms``, ``exposed_wait_ms`` (lists, one entry per step),
        ``steps``, ``wait_ms_by_neighbor`` (rank -> summed ms), ``bytes_sent``, ``messages_sent`` (this rank,
        summed over destinations) and ``compression_error`` (mean of the sampled ‖v − C(v)‖/‖v‖; None if
        nothing was compressed).
        """
        interval: dict[str, Any] = dict(self._steps)
        interval["steps"] = len(self._steps["encode_ms"])
        interval["wait_ms_by_neighbor"] = {j: s * 1e3 for j, s in sorted(self._by_neighbor.items())}
        interval["bytes_sent"] = self.bytes_sent - self._bytes_taken
        interval["messages_sent"] = self.messages_sent - self._messages_taken
        interval["compression_error"] = float(torch.stack(self._errors).mean()) if self._errors else None
        self._clear()
        return interval
