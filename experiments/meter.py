"""What a rank measures while it trains, and how the ranks' numbers become one line."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gossip.stats import Stats

PARTS = ("encode_ms", "decode_ms", "mix_ms", "exposed_wait_ms")
PER_STEP = ("loss", "step_ms", "compute_ms", *PARTS)


class Meter:
    """One rank's numbers: for the current log interval, and per step for the summary.

    `step_ms` is the wall time of a training step: data, forward, backward, optimizer and waits inside them.
    Evaluation and logging are not in it. `compute_ms` is what is left of it without the framework's share.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._clear()
        self._history: dict[str, list[float]] = {name: [] for name in PER_STEP}
        self._totals = {"bytes_sent": 0, "messages_sent": 0, "error_sum": 0.0, "error_steps": 0}
        self._lr = 0.0
        self._seconds, self._began = 0.0, time.monotonic()
        self.started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")

    def _clear(self) -> None:
        self._interval: dict[str, list[float]] = {"loss": [], "step_ms": []}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one training step."""
        start = time.perf_counter()
        yield
        self._interval["step_ms"].append((time.perf_counter() - start) * 1e3)

    def record(self, loss: float, lr: float) -> None:
        """Loss of this rank's batch, and learning rate, of the current step."""
        self._interval["loss"].append(loss)
        self._lr = lr

    def break_off(self) -> None:
        """The run ends within an interval: of that only the messages' error counts."""
        steps, error = len(self._interval["loss"]), self._stats.take()["compression_error"]
        if error is not None:
            self._totals["error_sum"] += error * steps
            self._totals["error_steps"] += steps

    def close_interval(self) -> dict[str, Any]:
        """This rank's means since the last call, and what it sent per step; see `aggregate` for the keys."""
        taken = self._stats.take()
        values: dict[str, list[float]] = {**self._interval, **{name: taken[name] for name in PARTS}}
        values["compute_ms"] = [
            max(0.0, step - sum(parts))
            for step, *parts in zip(values["step_ms"], *(values[name] for name in PARTS), strict=True)
        ]
        steps = len(values["step_ms"])
        for name in PER_STEP:
            self._history[name] += values[name]
        self._totals["bytes_sent"] += taken["bytes_sent"]
        self._totals["messages_sent"] += taken["messages_sent"]
        error = taken["compression_error"]
        if error is not None:
            self._totals["error_sum"] += error * steps
            self._totals["error_steps"] += steps
        self._clear()
        return {
            "lr": self._lr,
            **{name: statistics.fmean(values[name]) for name in PER_STEP},
            "bytes_sent_per_step": taken["bytes_sent"] / steps,
            "messages_sent_per_step": taken["messages_sent"] / steps,
            "compression_error": error,
            "wait_ms_by_neighbor": {j: ms / steps for j, ms in taken["wait_ms_by_neighbor"].items()},
        }

    def result(self, last: int) -> dict[str, Any]:
        """This rank's share of the summary: medians over all steps; the mean loss of the `last` ones.

        Waits come in bursts, which a median does not show: theirs is also given as a mean.
        """
        steps = max(1, len(self._history["loss"]))
        errors = self._totals["error_steps"]
        losses = self._history["loss"][-last:]
        return {
            **{name: statistics.median(self._history[name] or [0.0]) for name in PER_STEP if name != "loss"},
            "exposed_wait_ms_mean": statistics.fmean(self._history["exposed_wait_ms"] or [0.0]),
            "train_loss": statistics.fmean(losses) if losses else None,
            "bytes_sent_per_step": self._totals["bytes_sent"] / steps,
            "messages_sent_per_step": self._totals["messages_sent"] / steps,
            "compression_error": self._totals["error_sum"] / errors if errors else None,
        }

    @property
    def seconds(self) -> float:
        """Wall time of the whole run until now, evaluation included, of all its parts if it was resumed."""
        return self._seconds + time.monotonic() - self._began

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint; the interval must have been closed."""
        history = torch.tensor([self._history[name] for name in PER_STEP], dtype=torch.float64)
        times = {"seconds": self.seconds, "started": self.started}
        return {"history": history, "totals": dict(self._totals), **times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._history = dict(zip(PER_STEP, state["history"].tolist(), strict=True))
        self._totals = dict(state["totals"])
        self._seconds, self._began = state["seconds"], time.monotonic()
        self.started = state["started"]


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One line from every rank's row: the mean under its name, with ``_min`` and ``_max`` beside it.

    A rank that has no value (None) is left out. Waits become ``{rank: {neighbour: ms}}``.
    """
    line: dict[str, Any] = {}
    for name, first in rows[0].items():
        if isinstance(first, dict):
            line[name] = {rank: row[name] for rank, row in enumerate(rows)}
            continue
        values = [row[name] for row in rows if row[name] is not None]
        line[name] = line[f"{name}_min"] = line[f"{name}_max"] = None
        if values:
            low, high = line[f"{name}_min"], line[f"{name}_max"] = min(values), max(values)
            line[name] = min(max(statistics.fmean(values), low), high)  # rounding must not take it outside
    return line


def slowest_rank(rows: Sequence[Mapping[str, Any]]) -> int:
    """The rank that computes longest: the others wait for it."""
    return max(range(len(rows)), key=lambda rank: rows[rank]["compute_ms"])
