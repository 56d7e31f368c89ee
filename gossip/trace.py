"""What every rank did, and when, as one picture: a trace for ui.perfetto.dev or chrome://tracing.

Per rank there is a row of what the model computes, of waits with nothing left to compute, of encoding,
decoding and mixing, and as many rows of messages on their way as there are at a time. Times are those of
rank 0's clock.

Events are kept in memory, with the times of `time.perf_counter`, and written when the session finishes.
"""

from __future__ import annotations

import gzip
import heapq
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gossip import files
from gossip.errors import UsageError
from gossip.transport.base import Receipt, Transport, from_bytes

log = logging.getLogger("gossip")

Track = Literal["compute", "wait", "encode", "decode", "mix"]

ROWS = {"compute": 0, "wait": 1, "encode": 2, "decode": 3, "mix": 4}
"""The number (tid) of a track; messages on their way take the rows from `FLIGHT` on."""
FLIGHT = 5

MOST_EVENTS = 300_000
"""Per rank: about 100 MB in memory. What comes later is left out, and counted."""

PINGS = 8
"""The quickest of these tells how far two clocks are apart, to half the time it took."""


class Trace:
    """One rank's events. Making one is collective.

    Args:
        path: the file that rank 0 writes; compressed if it ends in ``.gz``.

    Raises:
        UsageError: rank 0 cannot write there.
    """

    def __init__(self, path: str | Path, world: Transport) -> None:
        self._path, self._world = Path(path), world
        self._events: list[tuple[str, str, float, float, dict[str, Any]]] = []
        self._dropped = 0
        problem = self._prepare() if world.rank == 0 else None
        if (problem := world.allgather(problem)[0]) is not None:
            raise UsageError(f"trace={str(path)!r}: {problem}. Give a file that can be written.")
        offset = clock_offset(world, time.perf_counter)
        self._zero = world.allgather(time.perf_counter())[0] + offset
        self._lap = time.perf_counter()

    def _prepare(self) -> str | None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")
        except OSError as error:
            return error.strerror or str(error)
        return None

    # -- recording ---------------------------------------------------------------------------------

    def span(self, track: Track, name: str, start: float, end: float) -> None:
        """Something that took from `start` to `end` (time.perf_counter)."""
        self._add(track, name, start, end, {})

    def flight(self, name: str, start: float, end: float, **about: Any) -> None:
        """A message, or a mean, that was on its way from `start` to `end`; `about` is shown with it."""
        self._add("in flight", name, start, end, about)

    def restart(self) -> None:
        """The next `lap` begins now."""
        self._lap = time.perf_counter()

    def lap(self, name: str) -> None:
        """The model has computed `name` since the last `restart`."""
        self.span("compute", name, self._lap, time.perf_counter())

    def _add(self, track: str, name: str, start: float, end: float, about: dict[str, Any]) -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append((track, name, start, end, about))
        else:
            self._dropped += 1

    # -- writing -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Collective: write all ranks' events into the file of rank 0."""
        if self._dropped:
            log.warning(f"rank {self._world.rank}: the trace leaves out its last {self._dropped} events")
        world, mine = self._world, ",\n".join(map(json.dumps, self._as_json())).encode()
        sizes, tag = world.allgather(len(mine)), world.reserve_tags(1)
        if world.rank > 0:
            world.post(torch.frombuffer(bytearray(mine), dtype=torch.uint8), 0, tag, counted=False)
            return
        receipts = [world.expect(rank, tag, sizes[rank]) for rank in range(1, world.size)]
        parts = [mine, *(_arrived(world, receipt).numpy().tobytes() for receipt in receipts)]
        opener: Any = gzip.open if self._path.suffix == ".gz" else open
        with files.writing(self._path), opener(self._path, "wb") as file:
            file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
            file.write(b",\n".join(parts))
            file.write(b"\n]}\n")

    def _as_json(self) -> Iterator[dict[str, Any]]:
        rank, rows, last = self._world.rank, [], FLIGHT - 1
        busy: list[tuple[float, int]] = []  # a heap: when each row of messages is free again
        for track, name, start, end, about in sorted(self._events, key=lambda event: (event[2], -event[3])):
            row = ROWS.get(track, FLIGHT)
            if track not in ROWS:
                if busy and busy[0][0] <= start:
                    _, row = heapq.heappop(busy)
                else:
                    row = last = last + 1
                heapq.heappush(busy, (end, row))
            rows.append(row)
            yield {
                "name": name,
                "cat": track,
                "ph": "X",
                "ts": round(1e6 * (start - self._zero), 1),
                "dur": round(1e6 * (end - start), 1),
                "pid": rank,
                "tid": row,
                "args": about,
            }
        names = {number: track for track, number in ROWS.items()}
        yield _about("process_name", rank, 0, name=f"rank {rank}")
        for row in sorted(set(rows)):
            yield _about("thread_name", rank, row, name=names.get(row, f"in flight {row - FLIGHT + 1}"))
            yield _about("thread_sort_index", rank, row, sort_index=row)


def _about(what: str, rank: int, row: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": row, "args": args}


def clock_offset(world: Transport, clock: Callable[[], float]) -> float:
    """Collective: how far this rank's `clock` is ahead of rank 0's, in seconds, from a few ping-pongs."""
    tag = world.reserve_tags(1)
    offsets = [0.0]
    for rank in range(1, world.size):
        if world.rank == 0:
            offsets.append(min(_ping(world, rank, tag, clock) for _ in range(PINGS))[1])
        elif world.rank == rank:
            for _ in range(PINGS):
                _arrived(world, world.expect(0, tag, 0))
                now = torch.tensor([clock()], dtype=torch.float64)
                world.post(now.view(torch.uint8), 0, tag, counted=False)
    return float(world.allgather(offsets)[0][world.rank])


def _ping(world: Transport, rank: int, tag: int, clock: Callable[[], float]) -> tuple[float, float]:
    """How long the way to `rank` and back took, and how far its clock is ahead if both ways took as long."""
    pong = world.expect(rank, tag, 8)
    start = clock()
    world.post(torch.empty(0, dtype=torch.uint8), rank, tag, counted=False)
    theirs = float(from_bytes(_arrived(world, pong).clone(), torch.float64))
    took = clock() - start
    return took, theirs - start - took / 2


def _arrived(world: Transport, receipt: Receipt) -> Tensor:
    world.wait(lambda: receipt.done, math.inf)
    return receipt.payload()
