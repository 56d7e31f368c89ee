"""How long a step takes on a link: the cost model.

One trip (trips.py) in which the busiest node sends b bytes, its largest message being m bytes long, takes

    h(m) (L + o) + max(8 b / (g R), 2 r L)

on a link of R bit/s and L seconds one way. h(m) = 1 up to the eager limit, and 3 above: request, consent,
data. r is the share of a round trip over which TCP spreads a burst that is longer than its first window: ln 2
/ 2 with bbr, which then measures a rate of one message per round trip and paces at 2 / ln 2 of it; 0 with
others, as long as they are not idle. Chains that run side by side share R, and so do buckets. Two constants
stand for the software: the goodput g, the share of R that messages get, and the overhead o per one-way
message; `Link.fit` finds them from two timed exchanges, one small and one large.

A step computes for c seconds, does the method's own computing (encode, decode), and exchanges:

    without overlap      c + own + exchange
    hidden methods       own + max(c, exchange)            D-PSGD, DCD, ECD, CHOCO, naive; with every=H, H c
    gradient methods     bucket by bucket while backward produces the others, in the order of its arrival
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossip.algorithms import Algorithm
from gossip.errors import UsageError
from gossip.mpirun import EAGER_BYTES
from gossip.plan.trips import Round, Trip

FORWARD = 1 / 3
"""Share of forward + backward after which the first gradients come."""

RAMP = {"bbr": math.log(2) / 2}
"""r, by TCP's congestion control."""

FIRST_WINDOW = 10 * 1448
"""Bytes that TCP sends at once on a connection of which it knows nothing."""

ASSUMED_GOODPUT, ASSUMED_OVERHEAD = 0.9, 0.5e-3
"""Assumptions, not measurements, for networks of which nothing is known but rate and latency."""


@dataclass(frozen=True)
class Exchange:
    """One timed exchange: every node sends `size` bytes to each of `degree` neighbours at once."""

    size: int
    degree: int
    seconds: float

    def __post_init__(self) -> None:
        if not (self.size > 0 and self.degree > 0 and 0 < self.seconds < math.inf):
            raise ValueError(f"size, degree and seconds are above 0, not {self}")


@dataclass(frozen=True)
class Link:
    """What every node's network is like.

    Attributes:
        bandwidth: R, bit/s that a node may send, and receive at the same time.
        latency: L, seconds one way.
        goodput: g, the share of R that messages get.
        overhead: o, seconds that software adds to each one-way message.
        eager: bytes of the longest message that is sent without asking, as this framework sets it.
        ramp: r, see above.
        measured: whether g and o were fitted.
    """

    bandwidth: float
    latency: float
    goodput: float = ASSUMED_GOODPUT
    overhead: float = ASSUMED_OVERHEAD
    eager: int = EAGER_BYTES
    ramp: float = 0.0
    measured: bool = False

    def one_way(self, size: float) -> int:
        """h: one-way messages until a message of `size` bytes is there."""
        return 1 if size <= self.eager else 3

    def busy(self, one: Round) -> float:
        """For how long a round's bytes keep the link from others."""
        return sum(self._busy(trip) for chain in one.chains for trip in chain)

    def idle(self, one: Round) -> float:
        """What a round takes besides."""
        return max((sum(map(self._idle, chain)) for chain in one.chains), default=0.0)

    def _busy(self, trip: Trip) -> float:
        return 8 * trip.busiest / (self.goodput * self.bandwidth)

    def _idle(self, trip: Trip) -> float:
        """What a trip takes besides, while other chains may use the link."""
        spread = 2 * self.ramp * self.latency if trip.largest > FIRST_WINDOW else 0.0
        waits = self.one_way(trip.largest) * (self.latency + self.overhead)
        return waits + max(0.0, spread - self._busy(trip))

    def at(self, bandwidth: float, latency: float) -> Link:
        """The same software on another network."""
        return replace(self, bandwidth=bandwidth, latency=latency)

    @classmethod
    def fit(cls, bandwidth: float, latency: float, small: Exchange, large: Exchange) -> Link:
        """g and o from two exchanges on a network of known rate and latency."""
        blank = cls(bandwidth, latency)
        overhead, per_byte = _solve(blank, small, large, latency)
        goodput = min(1.0, 8 / (bandwidth * per_byte))
        return replace(blank, goodput=goodput, overhead=max(0.0, overhead), measured=True)

    @classmethod
    def measure(cls, small: Exchange, large: Exchange) -> Link:
        """A link of which nothing else is known: the rate that messages get, and latency with overhead."""
        latency, per_byte = _solve(cls(1.0, 0.0), small, large, 0.0)
        return cls(8 / per_byte, max(0.0, latency), goodput=1.0, overhead=0.0, measured=True)


def _solve(link: Link, small: Exchange, large: Exchange, latency: float) -> tuple[float, float]:
    """o and the seconds per byte in  t = h (latency + o) + degree · size · per_byte,  from two t."""
    if small.size * small.degree >= large.size * large.degree:
        raise UsageError("the second exchange must send more bytes than the first.")
    hops = [link.one_way(e.size) for e in (small, large)]
    left = [[h, e.degree * e.size] for h, e in zip(hops, (small, large), strict=True)]
    right = [e.seconds - h * latency for h, e in zip(hops, (small, large), strict=True)]
    overhead, per_byte = np.linalg.solve(np.array(left, float), np.array(right, float))
    if per_byte <= 0:
        raise UsageError(
            f"{large.size} bytes took {large.seconds:.3g} s and {small.size} bytes {small.seconds:.3g} s: "
            "that tells no rate. Measure again on a quiet machine, or larger messages."
        )
    return float(overhead), float(per_byte)


@dataclass(frozen=True)
class Step:
    """The predicted time of one optimizer step, in seconds, and where it goes; `own` is the method's."""

    total: float
    exchange: float
    exposed: float
    own: float


def step(
    method: Algorithm,
    buckets: Sequence[Round],
    sizes: Sequence[int],
    link: Link,
    compute: float,
    own: float,
    overlap: bool = True,
) -> Step:
    """The time of an optimizer step in a long run.

    Args:
        buckets: one round per bucket, in the order in which backward fills them.
        sizes: the values of each.
        compute: c, seconds of a step without exchange.
        own: seconds that the method itself computes in a round: encode, decode.
    """
    every = method.every
    exchange = _end(link, buckets, [0.0] * len(buckets))
    if not overlap:
        exposed = exchange
    elif method.kind == "parameter":
        exposed = max(0.0, exchange - every * compute) if method.hides else exchange
    else:
        filled = [n / max(1, sum(sizes)) for n in itertools.accumulate(sizes)]
        ready = [(FORWARD + (1 - FORWARD) * share) * compute for share in filled]
        exposed = max(0.0, _end(link, buckets, ready) - compute)
    return Step(compute + (own + exposed) / every, exchange / every, exposed / every, own / every)


def _end(link: Link, buckets: Sequence[Round], ready: Sequence[float]) -> float:
    """When the last round ends, if they begin when `ready`; a latency does not keep the next one waiting."""
    free = end = 0.0
    for one, begin in zip(buckets, ready, strict=True):
        free = max(free, begin) + link.busy(one)
        end = max(end, free + link.idle(one))
    return end
