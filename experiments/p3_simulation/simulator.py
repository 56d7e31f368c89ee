"""A deterministic event simulation of synchronous training through sharded parameter servers.

n ranks compute the same layers at the same speed. Each is a worker, and the server of the slices it owns;
slice s belongs to rank s mod n, slices numbered from the last layer to the first, as gossip does.

    worker   forward, layer by layer: each waits for the means of all its slices, of the step before;
             backward, from the last layer to the first: a layer's slices are then pushed to their owners
    owner    when a slice has all n gradients: update (its processor does one at a time), then broadcast
    sender   messages wait in a queue, older steps first, then by priority, then as they came; at most
             `in_flight` are on their way, until their receivers' acknowledgements
    network  a rank's messages leave its uplink one after the other, and so they enter their receiver's
             downlink; the wire between delays each by `latency`. Nothing is stored on the way: the end of a
             message arrives when it has left and the downlink has taken all of it

Everything is known in advance, so nothing is random: the same arguments give the same times.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.p3_simulation.layers import Layer
from gossip.algorithms.p3 import P3
from gossip.flat import even_parts

BYTES = 4
"""Per value."""


@dataclass(frozen=True)
class Cluster:
    """The machines.

    Attributes:
        nodes: ranks.
        bandwidth: of each rank's link, bytes per second each way at once.
        latency: seconds one way.
        update_per_value: seconds that an owner's processor takes for each value of a slice.
        update_per_slice: and for each slice, whatever its size.
        notice: seconds until a rank looks at what has arrived, be it a message or an acknowledgement.
    """

    nodes: int
    bandwidth: float
    latency: float = 0.0
    update_per_value: float = 0.0
    update_per_slice: float = 0.0
    notice: float = 0.0


Track = Literal["forward", "backward", "push", "pull", "update"]


@dataclass(frozen=True)
class Span:
    """What a rank did from `start` to `end` in `step`: computing, sending (on its uplink), or updating."""

    rank: int
    track: Track
    layer: int
    step: int
    start: float
    end: float


@dataclass(frozen=True)
class Run:
    """A simulation's outcome.

    Attributes:
        ends: when the slowest rank has ended backward, by step.
        final: when a rank has the last of a layer's updates: ``final[step, rank, layer]``.
        spans: everything, in the order of its start.
        sent: bytes per rank and step.
    """

    ends: tuple[float, ...]
    final: dict[tuple[int, int, int], float]
    spans: tuple[Span, ...]
    sent: tuple[int, ...]

    @property
    def step_time(self) -> float:
        """Mean seconds per step in the second half: what one leaves unsent shifts the next a little."""
        half = len(self.ends) // 2
        return (self.ends[-1] - self.ends[half - 1]) / (len(self.ends) - half)


@dataclass(frozen=True)
class Slice:
    """A part of a layer and its owner."""

    number: int
    layer: int
    values: int
    owner: int


@dataclass(order=True, frozen=True)
class Message:
    """What waits in a sender's queue, in the order in which it leaves."""

    step: int
    urgency: int
    arrival: int
    what: Slice = field(compare=False)
    to: int = field(compare=False)
    pull: bool = field(compare=False)


def cut(layers: Sequence[Layer], method: P3, nodes: int) -> list[Slice]:
    """The slices, from the last layer to the first."""
    pieces, slices = method.pieces(nodes), list[Slice]()
    for layer in reversed(range(len(layers))):
        size = layers[layer].values
        for at in even_parts(size, pieces(size)):
            number = len(slices)
            slices.append(Slice(number, layer, at.stop - at.start, number % nodes))
    return slices


def simulate(layers: Sequence[Layer], cluster: Cluster, method: P3, steps: int = 6) -> Run:
    """Train for `steps` (at least 2) steps, from a start where every rank has the first parameters."""
    return _Simulation(layers, cluster, method, steps).run()


class _Rank:
    """One rank's state: its place in the computation, its queue, its links and its server."""

    def __init__(self, layers: int) -> None:
        self.step = 0
        self.layer = 0  # of the forward that is next, or waits
        self.waits = False
        self.missing = [0] * layers  # slices that a layer still needs before it may run
        self.queue: list[Message] = []
        self.in_flight = 0
        self.uplink: list[Message] = []
        self.uplink_busy = False
        self.downlink_free = self.server_free = 0.0
        self.gradients: dict[tuple[int, int], int] = {}  # by step and slice: how many of n are here
        self.ends: list[float] = []


class _Simulation:
    def __init__(self, layers: Sequence[Layer], cluster: Cluster, method: P3, steps: int) -> None:
        self.layers, self.cluster, self.method, self.steps = layers, cluster, method, steps
        slices = cut(layers, method, cluster.nodes)
        self.of_layer = [[s for s in slices if s.layer == layer] for layer in range(len(layers))]
        self.ranks = [_Rank(len(layers)) for _ in range(cluster.nodes)]
        self.sent = [0] * cluster.nodes
        self.final: dict[tuple[int, int, int], float] = {}
        self.spans: list[Span] = []
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), call))

    def run(self) -> Run:
        for i in range(self.cluster.nodes):
            self.forward(i)
        while self._events:
            self.now, _, call = heapq.heappop(self._events)
            call()
        ends = tuple(max(rank.ends[step] for rank in self.ranks) for step in range(self.steps))
        spans = tuple(sorted(self.spans, key=lambda span: (span.start, span.rank, span.track)))
        return Run(ends, self.final, spans, tuple(sent // self.steps for sent in self.sent))

    # -- a worker ----------------------------------------------------------------------------------

    def forward(self, i: int) -> None:
        """Run the next layer forward if it has all it needs."""
        rank = self.ranks[i]
        rank.waits = rank.missing[rank.layer] > 0
        if not rank.waits:
            self.compute(i, "forward", self.layers[rank.layer].forward, lambda: self.forward_done(i))

    def forward_done(self, i: int) -> None:
        rank = self.ranks[i]
        if rank.layer + 1 < len(self.layers):
            rank.layer += 1
            self.forward(i)
        else:
            self.backward(i)

    def backward(self, i: int) -> None:
        layer = self.layers[self.ranks[i].layer]
        self.compute(i, "backward", layer.backward, lambda: self.backward_done(i))

    def backward_done(self, i: int) -> None:
        rank, n = self.ranks[i], self.cluster.nodes
        of_layer = self.of_layer[rank.layer]
        rank.missing[rank.layer] = len(of_layer)
        # Each rank begins with another owner, as gossip's engine does.
        for s in sorted(of_layer, key=lambda s: (s.number // n, (s.number - i - 1) % n)):
            if s.owner == i:
                self.gradient_came(i, s, rank.step)
            else:
                self.send(i, s, rank.step, to=s.owner, pull=False)
        if rank.layer > 0:
            rank.layer -= 1
            self.backward(i)
            return
        rank.ends.append(self.now)
        rank.step += 1
        if rank.step < self.steps:
            self.forward(i)

    def compute(self, i: int, track: Track, seconds: float, then: Callable[[], None]) -> None:
        rank, end = self.ranks[i], self.now + seconds
        self.spans.append(Span(i, track, rank.layer, rank.step, self.now, end))
        self.at(end, then)

    def updated(self, i: int, s: Slice, step: int) -> None:
        """Rank i has the mean of a slice."""
        rank = self.ranks[i]
        rank.missing[s.layer] -= 1
        if rank.missing[s.layer] == 0:
            self.final[step, i, s.layer] = self.now
            if rank.waits and rank.layer == s.layer:
                self.forward(i)

    # -- an owner ----------------------------------------------------------------------------------

    def gradient_came(self, i: int, s: Slice, step: int) -> None:
        rank = self.ranks[i]
        count = rank.gradients[step, s.number] = rank.gradients.get((step, s.number), 0) + 1
        if count < self.cluster.nodes:
            return
        del rank.gradients[step, s.number]
        start = max(self.now, rank.server_free)
        took = self.cluster.update_per_slice + s.values * self.cluster.update_per_value
        rank.server_free = start + took
        self.spans.append(Span(i, "update", s.layer, step, start, rank.server_free))
        self.at(rank.server_free, lambda: self.broadcast(i, s, step))

    def broadcast(self, i: int, s: Slice, step: int) -> None:
        for k in range(1, self.cluster.nodes):
            self.send(i, s, step, to=(i + k) % self.cluster.nodes, pull=True)
        self.updated(i, s, step)

    # -- the network -------------------------------------------------------------------------------

    def send(self, i: int, s: Slice, step: int, to: int, pull: bool) -> None:
        urgency = s.layer if self.method.order == "priority" else 0
        heapq.heappush(self.ranks[i].queue, Message(step, urgency, next(self._numbers), s, to, pull))
        self.pump(i)

    def pump(self, i: int) -> None:
        """Let messages leave the queue while the bound allows."""
        rank = self.ranks[i]
        while rank.queue and rank.in_flight < self.method.in_flight:
            rank.in_flight += 1
            rank.uplink.append(heapq.heappop(rank.queue))
            if not rank.uplink_busy:
                self.transmit(i)

    def transmit(self, i: int) -> None:
        """The first message in the uplink begins to leave."""
        rank = self.ranks[i]
        if not rank.uplink:
            rank.uplink_busy = False
            return
        rank.uplink_busy = True
        message = rank.uplink.pop(0)
        size = BYTES * message.what.values
        self.sent[i] += size
        took = size / self.cluster.bandwidth
        track: Track = "pull" if message.pull else "push"
        self.spans.append(Span(i, track, message.what.layer, message.step, self.now, self.now + took))
        self.at(self.now + took, lambda: self.transmit(i))
        self.at(self.now + self.cluster.latency, lambda: self.enter(i, message, took))

    def enter(self, i: int, message: Message, took: float) -> None:
        """A message that has begun to leave rank i reaches its receiver."""
        receiver = self.ranks[message.to]
        receiver.downlink_free = max(self.now, receiver.downlink_free) + took
        noticed = receiver.downlink_free + self.cluster.notice
        self.at(noticed, lambda: self.arrived(message))
        self.at(noticed + self.cluster.latency + self.cluster.notice, lambda: self.acknowledged(i))

    def arrived(self, message: Message) -> None:
        arrive = self.updated if message.pull else self.gradient_came
        arrive(message.to, message.what, message.step)

    def acknowledged(self, i: int) -> None:
        self.ranks[i].in_flight -= 1
        self.pump(i)
