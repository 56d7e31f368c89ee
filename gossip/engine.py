"""Drives the algorithms' generators: when a round starts, who resumes it, what overlaps what.

A round on one bucket is a `Lane`. What the two kinds of methods have in common is here: messages move and
lanes run on at every hook, somebody waits for what is late, and a state can be saved between rounds. When
rounds begin and end is told in parameter_engine.py and gradient_engine.py.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, TypeVar, cast

from torch import nn

from gossip.algorithms.base import Algorithm
from gossip.effects import Arrival, Node, Receive
from gossip.errors import CheckpointError, PeerLostError, WatchdogError
from gossip.flat import FlatModel
from gossip.lane import Lane, diverged
from gossip.outbox import Outbox
from gossip.patience import Patience
from gossip.stats import Stats
from gossip.transport.base import Transport

TICK_SECONDS = 5e-3
"""The shortest time between two polls from hooks: a poll may yield the core, and hooks are many."""
QUEUE_TICK_SECONDS = 1e-3
"""The same while messages wait for others to be taken: a poll hands on as many as it finds taken."""

M = TypeVar("M", bound=Callable[..., Any])


def locked(method: M) -> M:
    """A method of the engine that a progress thread must not run into."""

    @functools.wraps(method)
    def call(self: Engine, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return cast(M, call)


@dataclass(eq=False, repr=False)
class Engine(ABC):
    """One rank's rounds.

    Args:
        nodes: one for each bucket of `flat`.
        overlap: False runs the same generators to their end at once: the same numbers, no overlap.
        timeout: seconds without an arrival before a `WatchdogError`.
    """

    averages_gradients: ClassVar[bool]
    applying = False
    """Whether the optimizer is making a part of a step that the user has made before."""

    flat: FlatModel
    algorithm: Algorithm
    nodes: InitVar[Iterable[Node]]
    outbox: Outbox
    transport: Transport
    stats: Stats
    overlap: bool
    timeout: float

    def __post_init__(self, nodes: Iterable[Node]) -> None:
        self._lock = threading.RLock()
        self._arrived: deque[Lane] = deque()  # lanes that something has come for
        self.lanes = [
            Lane(bucket, self.flat, self.algorithm, node)
            for bucket, node in zip(self.flat.buckets, nodes, strict=True)
        ]
        for lane in self.lanes:
            lane.node.wake = functools.partial(self._arrived.append, lane)
        self._next_tick = 0.0
        self.transport.attend(self)

    @property
    def moves_in_forward(self) -> bool:
        """Whether a forward has something to drive."""
        return True

    @property
    def round(self) -> int:
        """Rounds finished by every bucket."""
        return min(lane.t for lane in self.lanes)

    # -- hooks on the model and the optimizer ------------------------------------------------------

    @abstractmethod
    def on_forward(self) -> None:
        """The model starts a training forward."""

    def on_module(self, module: nn.Module, learning: bool) -> None:
        """A module is about to run: in a training forward (`learning`), or in any other."""
        if learning:
            self.tick()

    def on_gradient(self, p: nn.Parameter) -> None:
        """Backward has accumulated the gradient of `p`."""
        self.tick()

    @abstractmethod
    def on_step_begin(self, has_closure: bool = False) -> None:
        """The optimizer is about to step; with a closure, backward is yet to come."""

    @abstractmethod
    def on_step_end(self) -> None:
        """The optimizer has stepped."""

    @abstractmethod
    def skip(self) -> None:
        """Take part in this step's round without an optimizer step (e.g. one that a GradScaler skipped)."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside exchanges the sum."""
        return nullcontext()

    def catch_up(self) -> None:  # noqa: B027  (a step is whole where nothing comes after it)
        """Wait until the model has the whole update of its last step."""

    # -- progress ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let messages move and rounds run on, now and then; never waits. Every hook calls it."""
        now = time.perf_counter()
        if now < self._next_tick:
            return
        self._next_tick = now + (TICK_SECONDS if self.outbox.empty else QUEUE_TICK_SECONDS)
        self.transport.poll()
        self.serve()

    def serve(self) -> None:
        """Advance the lanes that something has come for, and post what may leave; never waits.

        A `Party` of the transport, which calls this while the rank waits for anything at all: other ranks may
        be waiting for what this one has to send on.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread is doing it
        try:
            while self._arrived:
                self._arrived_for(self._arrived.popleft())
            self.outbox.pump()
        finally:
            self._lock.release()

    def _arrived_for(self, lane: Lane) -> None:
        lane.advance()

    def begin(self) -> None:
        """Start the next round on every bucket whose last one has ended."""
        for lane in self.lanes:
            if not lane.running:
                lane.start()

    def _wait(self, lanes: Iterable[Lane], reached: Callable[[Lane], bool]) -> None:
        """Wait until all `lanes` have `reached` something; the time is exposed: nothing is left to compute.

        Raises:
            WatchdogError: none of them has got there for `timeout` seconds.
        """
        left = deque(lane for lane in lanes if not reached(lane))
        if not left:
            return
        label = left[0].node.label + (f" and {len(left) - 1} more" if len(left) > 1 else "")
        start, busy = time.perf_counter(), self.stats.busy
        late: dict[int, float] = {}
        patience = Patience(self.transport, self.timeout)

        def over() -> bool:
            while left and reached(left[0]):
                left.popleft()
            if not left:
                return True
            if isinstance(left[0].effect, Receive):
                late.update(dict.fromkeys(left[0].effect.missing(), time.perf_counter() - start))
            self._check_peers(left[0])
            return patience.is_out(len(left))

        self.transport.wait(over, math.inf)
        end = time.perf_counter()
        self.stats.exposed += end - start - (self.stats.busy - busy)
        if self.stats.trace is not None:
            self.stats.trace.span("wait", label, start, end)
        for j, seconds in late.items():
            self.stats.waited_for(j, seconds)
        if left:
            raise WatchdogError(self._stuck(left[0]))

    def _check_peers(self, lane: Lane) -> None:
        for j, where in self.transport.notes.get("diverged", {}).items():
            if j != self.transport.rank:
                raise diverged(where, second_hand=True)
        if not isinstance(lane.effect, Arrival) or lane.effect.ready:
            return
        departed = self.transport.departed
        finished = {
            j: t
            for j, (run, t) in self.transport.notes.get("finished", {}).items()
            if run == self._run and t < lane.node.t
        }
        missing = lane.effect.missing()
        for j in sorted(departed.keys() | finished.keys()):
            if missing is None or j in missing:
                what = f"finished after round {finished[j]}" if j in finished else f"left ({departed[j]})"
                error = PeerLostError(
                    f"rank {self.transport.rank}, round {lane.node.t}, {lane.node.label}: "
                    f"waits for rank {j}, which has {what}. Did every rank run the same number of steps? "
                    "node.shard(dataset, batch_size) gives each the same."
                )
                error.second_hand = j not in finished
                raise error

    @property
    def _run(self) -> int:
        """Tells this session of the process from its others, alike on all ranks."""
        return self.lanes[0].node.tag

    def say_finished(self) -> None:
        """Tell the others that no round will follow: one that waits for more has taken more steps."""
        self.transport.note("finished", [self._run, self.round])

    def _stuck(self, lane: Lane) -> str:
        where = f"rank {self.transport.rank}, round {lane.node.t}, {lane.node.label}"
        missing = lane.effect.missing() if isinstance(lane.effect, Arrival) else set()
        if missing is None:
            whom = "all ranks to join its all-reduce"
        else:
            whom = ", ".join(
                f"rank {j} (last heard from in round {lane.node.heard.get(j, 0)})" for j in sorted(missing)
            )
        return (
            f"{where}: nothing arrived for {self.timeout:g} s. Waiting for {whom}. "
            "If that rank is only slow, raise --timeout (join(timeout=...))."
        )

    @locked
    def drain(self) -> None:
        """Wait until all rounds have ended that await nothing of the model, and what they sent has left."""
        self._end_rounds()
        self.catch_up()

        patience = Patience(self.transport, self.timeout)

        def over() -> bool:
            gone = self.transport.departed.keys() & self.outbox.receivers()
            if gone:
                raise PeerLostError(
                    f"rank {self.transport.rank} still has messages for rank {min(gone)}, which has left."
                )
            return self.outbox.empty or patience.is_out(len(self.outbox))

        self.transport.wait(over, math.inf)
        if not self.outbox.empty:
            raise WatchdogError(
                f"rank {self.transport.rank}: ranks {self.outbox.receivers()} have not taken its messages "
                f"for {self.timeout:g} s. If they are only slow, raise --timeout (join(timeout=...))."
            )
        self._book_traffic()

    def _end_rounds(self) -> None:
        self._wait(self.lanes, is_done)

    # -- books and state ---------------------------------------------------------------------------

    def _book_traffic(self) -> None:
        self.stats.bytes_sent = self.outbox.bytes_sent
        self.stats.messages_sent = self.outbox.messages_sent

    def _end_step(self) -> None:
        self._book_traffic()
        self.stats.end_step()

    @locked
    def state_dict(self) -> dict[str, Any]:
        """Everything the next rounds depend on; waits for the tails first.

        A round that has begun but awaits the optimizer has changed nothing yet, so it is no part of the
        state: it starts anew at the next forward, and sends the same messages.
        """
        self.drain()
        return {"lanes": [lane.state_dict() for lane in self.lanes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        if any(lane.running for lane in self.lanes):
            raise CheckpointError(
                "a round is in progress: load the state after join, before the first forward."
            )
        for lane, saved in zip(self.lanes, state["lanes"], strict=True):
            lane.load_state_dict(saved)


def is_done(lane: Lane) -> bool:
    """Whether its round needs nothing more from the network."""
    return not lane.owed
