"""What the ranks agree on between two steps: that all of them live, and at which step to stop.

Ranks are not in step with each other, so none may simply stop, or enter a collective that another may never
reach. Both go through notes here, which arrive without anybody waiting for them.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

from gossip.errors import DivergedError, WatchdogError
from gossip.transport.base import Transport
from gossip.transport.local import LocalTransport

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""SIGUSR1 too: Open MPI's mpirun passes it on to the ranks, but kills them 0.25 s after its own SIGTERM."""

EXIT_CODE_STOPPED = 128 + signal.SIGTERM
EXIT_CODE_INTERRUPTED = 128 + signal.SIGINT


class StopSignal:
    """Remembers, while its ``with`` block runs, that the process was asked to stop. Nodes share it."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = True


class Agreement:
    """One rank's part in the decisions of the job.

    Args:
        timeout: seconds to wait for the others before a `WatchdogError`.
        every: local steps between two exchanges.
    """

    def __init__(self, world: Transport, stop_signal: StopSignal, timeout: float, every: int = 1) -> None:
        self._world, self._signal, self._timeout, self._every = world, stop_signal, timeout, every
        # How far ahead a stop is announced: until all have heard of it, the announcer must not be missing in
        # a step that another is in. Nodes drift apart by one round, `every` steps, for each neighbour between
        # them, and under MPI news may be as slow as the messages. Virtual nodes hear at once, so all that
        # counts is the step in which each of them is. It needs what its neighbours send in the same round,
        # they what theirs have sent in the one before, and so on, back to the announcer. Each link had been
        # at most a round behind, so two rounds are missing there at most; one more step costs little.
        virtual = isinstance(world, LocalTransport)
        self._ahead = 2 * every + 1 if virtual else (world.size + 1) * every
        self._announced: int | None = None

    def meet(self, step: int) -> None:
        """Wait until every rank has come to `step`: a collective is safe now.

        Raises:
            DivergedError: on every rank that waits here when one has diverged and will never come.
            WatchdogError: a rank did not come; the message says how far it was.
        """
        self._world.note("at", step)
        self._wait(lambda: all(at >= step for at in self._heard("at", -1)), step, "at", f"step {step}")

    def stops_after(self, step: int) -> bool:
        """Whether all ranks stop after `step`, because one of them was asked to.

        A rank that is asked, or hears that another was, announces a step far enough ahead for the news to
        reach everybody before anyone has to wait. There it waits for all announcements; the last counts.
        """
        self._announce_if_asked(step)
        if self._announced is None or step < self._announced:
            return False
        self._wait(lambda: min(self._heard("stop", -1)) >= 0, step, "stop", "its last step")
        return step >= max(self._heard("stop", -1))

    def check_loss(self, loss: float, step: int) -> None:
        """Raise `DivergedError`, and tell the other ranks, unless `loss` is finite."""
        if not math.isfinite(loss):
            # The engine of a rank that waits for this one reads the same note; round and bucket are for it.
            about = {"round": -(-step // self._every), "bucket": 0}
            where = {"rank": self._world.rank, **about, "step": step, "loss": str(loss)}
            self._world.note("diverged", where)
            self._raise_diverged()

    def first_diverged(self) -> dict[str, Any] | None:
        """Rank, step and more of the first divergence that is known here."""
        known = self._world.notes.get("diverged", {}).values()
        return min(known, key=lambda note: (note["step"], note["rank"]), default=None)

    def record_divergence(self, record: Callable[[dict[str, Any]], None]) -> None:
        """Let rank 0 `record` the first divergence; the others give it time to, before they end the job."""
        if self._world.rank == 0:
            record(self.first_diverged() or {"rank": 0, "step": 0})
            self._world.note("recorded", True)
        self._world.wait(lambda: 0 in self._world.notes.get("recorded", {}), min(self._timeout, 10.0))

    # -- how ---------------------------------------------------------------------------------------

    def _heard(self, kind: str, otherwise: int) -> list[int]:
        notes = self._world.notes.get(kind, {})
        return [notes.get(rank, otherwise) for rank in range(self._world.size)]

    def _announce_if_asked(self, step: int) -> None:
        if self._announced is None and (self._signal.received or self._world.notes.get("stop")):
            self._announced = step + self._ahead
            self._world.note("stop", self._announced)

    def _wait(self, reached: Callable[[], bool], step: int, kind: str, what: str) -> None:
        """Wait until `reached`, and still answer when another rank announces that it stops."""

        def news() -> bool:
            asked = self._announced is None and bool(self._world.notes.get("stop"))
            return reached() or asked or self.first_diverged() is not None

        while not reached():
            in_time = self._world.wait(news, self._timeout)
            self._announce_if_asked(step)
            if reached():
                return
            if self.first_diverged() is not None:
                self._raise_diverged()
            if not in_time:
                late = [r for r, at in enumerate(self._heard(kind, -1)) if at < (step if kind == "at" else 0)]
                last = {r: self._heard("at", 0)[r] for r in late}
                raise WatchdogError(
                    f"rank {self._world.rank}, step {step}: waited {self._timeout:g} s for rank"
                    f" {', '.join(f'{r} (last seen at step {last[r]})' for r in late)} to reach {what}. "
                    "If it is only slow, raise --timeout."
                )

    def _raise_diverged(self) -> NoReturn:
        first = self.first_diverged() or {}
        what = f"the loss is {first['loss']}" if "loss" in first else "NaN or infinity in the parameters"
        error = DivergedError(
            f"training has diverged: {what} on rank {first.get('rank')} at step {first.get('step')}. "
            "Lower --lr, warm it up (--lr-warmup), or take a finer --compressor."
        )
        error.second_hand = first.get("rank") != self._world.rank
        raise error
