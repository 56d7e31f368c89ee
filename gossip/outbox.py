"""The order in which a rank's messages leave: a queue in front of the transport, with a bound in flight.

A library that is given everything at once keeps it in buffers of its own, where nothing can overtake. So
messages wait here, and the most urgent one is handed on when another has been taken by its receiver. That is
what `Transport.post` calls done: its sends are synchronous, and their completion is the receiver's word that
it has matched the message. As the receives of a round are posted when it starts, that is when the message
arrives. (A long message may be matched by its first fragment. What is still in the kernel then is at most the
rest of one message per receiver.)
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from time import perf_counter as _now
from typing import TYPE_CHECKING

from torch import Tensor

from gossip.transport.base import Transport

if TYPE_CHECKING:
    from gossip.trace import Trace

IN_FLIGHT = 8
"""Messages on their way at a time where an order is asked for.

Two would fill a link in one direction: one that travels, and one that follows when it has arrived. But the
word of an arrival waits behind what travels the other way, so more are needed where messages travel both ways
(it is measured in docs/p3.md).
"""


@dataclass(frozen=True)
class Posting:
    """How messages leave.

    Attributes:
        by_priority: the smallest priority first, equals in the order they came; else all in that order.
        in_flight: messages that have left and have not been matched by their receivers, at most.
    """

    by_priority: bool = False
    in_flight: float = math.inf

    @property
    def plain(self) -> bool:
        """Whether messages leave as they come."""
        return self == Posting()


@dataclass(frozen=True)
class Letter:
    """A message, where it goes, and what a trace tells about it."""

    payload: Tensor
    to: int
    tag: int
    t: int
    priority: int
    label: str
    queued: float


class Outbox:
    """One rank's queue.

    Attributes:
        bytes_sent, messages_sent: what has left so far, in this session; means are added by `count`.

    A round's messages leave before those of the next round, whatever their priority. So a rank that is still
    in the older round gets all that it waits for, and a bounded queue cannot lock up.
    """

    def __init__(self, transport: Transport, posting: Posting, trace: Trace | None = None) -> None:
        self.posting = posting
        self._transport, self._trace = transport, trace
        self._waiting: list[tuple[int, int, int, Letter]] = []  # a heap
        self._arrivals = itertools.count()
        self._landed: deque[tuple[Letter, float, float]] = deque()  # with the times it left and landed
        self._in_flight = 0
        self.bytes_sent = self.messages_sent = 0

    def post(self, payload: Tensor, to: int, tag: int, *, t: int, priority: int, label: str) -> None:
        """Send uint8 [m] to rank `to` when its turn comes; never waits.

        Args:
            t: the round it belongs to.
            priority: the smaller, the more urgent.
            label: what it is, for a trace.
        """
        letter = Letter(payload, to, tag, t, priority, label, _now())
        urgency = priority if self.posting.by_priority else 0
        heapq.heappush(self._waiting, (t, urgency, next(self._arrivals), letter))
        self.pump()

    def pump(self) -> None:
        """Hand on what may leave now; never waits."""
        while True:
            while self._landed:
                self._in_flight -= 1
                self._record(*self._landed.popleft())
            if not self._waiting or self._in_flight >= self.posting.in_flight:
                return
            *_, letter = heapq.heappop(self._waiting)
            self._in_flight += 1
            self.count(letter.payload.numel(), 1)
            self._transport.post(letter.payload, letter.to, letter.tag, partial(self._land, letter, _now()))

    def count(self, bytes: int, messages: int) -> None:
        """Book what leaves."""
        self.bytes_sent += bytes
        self.messages_sent += messages

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        """Whether everything has been handed to the transport."""
        return not self._waiting

    def receivers(self) -> list[int]:
        """The ranks that waiting messages are for, ascending."""
        return sorted({letter.to for *_, letter in self._waiting})

    def _land(self, letter: Letter, left: float) -> None:
        """Whoever drives the transport tells that the message has been matched."""
        self._landed.append((letter, left, _now()))

    def _record(self, letter: Letter, left: float, landed: float) -> None:
        if self._trace is None:
            return
        self._trace.flight(
            letter.label,
            left,
            landed,
            to=letter.to,
            round=letter.t,
            priority=letter.priority,
            bytes=letter.payload.numel(),
            queued_ms=1e3 * (left - letter.queued),
        )
