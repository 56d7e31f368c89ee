"""What a round sends, as trips through the network. The one place where the planner's byte counts come from.

A *trip* is what travels at the same time; a *chain* is trips of which each waits for the one before. A
neighbour method makes one trip, an all-reduce a chain of 2(n − 1) or fewer. Messages are those that the
method itself declares (`Algorithm.expects`), in the size that its codec declares (`max_bytes`); where a
message's length depends on the data, that is the most it can be.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from compressors import Compressor
from compressors.keyed import Keyed
from gossip import traffic
from gossip.algorithms import Algorithm
from gossip.flat import Segment
from gossip.transport import ring
from gossip.transport.base import mean_bytes
from topologies import Schedule, Topology

Segments = tuple[Segment, ...]

TREE_BELOW = 65536
"""Open MPI sends vectors of less bytes, and all among fewer than 4 nodes, up and down a binomial tree."""


@dataclass(frozen=True)
class Trip:
    """What travels at the same time.

    Attributes:
        busiest: bytes that the busiest node sends or receives.
        largest: bytes of the largest message.
    """

    busiest: float
    largest: float


Chain = tuple[Trip, ...]


@dataclass(frozen=True)
class Round:
    """One bucket's round.

    Attributes:
        chains: run side by side.
        sent: bytes that the busiest node hands to the network, as the transport counts them: a mean of b
            bytes counts 2(n−1)/n b.
        codec: makes the messages, of `values` values each; None where they are float32.
        encodes, decodes: how many of them a node makes, and reads, its own included.
    """

    chains: tuple[Chain, ...]
    sent: float
    codec: Compressor | None = None
    values: int = 0
    encodes: int = 0
    decodes: float = 0.0


def of_round(
    method: Algorithm,
    graph: Topology | Schedule,
    codec: Compressor,
    segments: Segments,
    t: int,
    bucket: int = 0,
) -> Round:
    """Round t (from 1) on the bucket of these tensors, as `gossip.join` with these objects would run it."""
    nodes = list(traffic.views(graph, codec, segments, bucket))
    if method.kind == "gradient" and method.pieces(graph.size) is None:
        nodes = nodes[:1]  # every node does the same: what one receives, one sends
    sent: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    received: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    largest: defaultdict[int, float] = defaultdict(float)
    coded: list[tuple[Compressor, int]] = []
    for node in nodes:
        node.t = t
        for e in method.expects(node):
            reader, length = node.reads(e)
            size = 4 * length if reader is None else reader.max_bytes(length)
            if reader is not None:  # keys go beside the values, and take no coding
                coded.append((reader.values if isinstance(reader, Keyed) else reader, length))
            received[e.slot][node.rank] += size
            sent[e.slot][e.frm] += size
            largest[e.slot] = max(largest[e.slot], size)
    if len(nodes) < graph.size:
        sent = received
    trips = tuple(
        Trip(max(*sent[slot].values(), *received[slot].values(), 0.0), largest[slot]) for slot in sorted(sent)
    )
    means = method.means(nodes[0])
    chain = tuple(trip for length in means for trip in mean_trips(4 * length, graph.size))
    by_node = [sum(slot[node.rank] for slot in sent.values()) for node in nodes]
    codec_used, values = coded[0] if coded else (None, 0)
    encodes = 1 if len(sent) == 1 else graph.size  # what makes two trips goes in parts
    return Round(
        chains=tuple(filter(None, (trips, chain))),
        sent=max(by_node) + sum(mean_bytes(length, graph.size) for length in means),
        codec=codec_used,
        values=values,
        encodes=encodes if coded else 0,
        decodes=len(coded) / len(nodes) + 1 if coded else 0.0,
    )


def mean_trips(size: float, n: int) -> Chain:
    """The trips of an all-reduce of `size` bytes over n nodes.

    A ring where its parts are long enough; else what Open MPI does without blocking, up and down a binomial
    tree (on the way down the longest branch gets its message first, so that all end together), or from
    `TREE_BELOW` on Rabenseifner's algorithm: halves, quarters, … are exchanged and added, and come back the
    same way; where n is no power of two the nodes beyond it first join another, and get the result from it.
    """
    if n == 1 or size == 0:
        return ()
    if ring.serves(size, n):
        return (Trip(size / n, size / n),) * (2 * (n - 1))
    if n < 4 or size < TREE_BELOW:
        return (Trip(size, size),) * (2 * math.ceil(math.log2(n)))
    levels = int(math.log2(n))
    halves = [size / 2**k for k in range(1, levels + 1)]
    fold = [] if n == 2**levels else [size / 2, size / 2]
    spread = [size] if fold else []
    return tuple(Trip(b, b) for b in (*fold, *halves, *reversed(halves), *spread))
