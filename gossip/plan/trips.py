"""What a round sends, as trips through the network.

A *trip* is what travels at the same time; a *chain* is trips of which each waits for the one before. A
neighbour method makes one trip, an all-reduce a chain of 2(n − 1) or fewer. Messages and their bytes are
those of traffic.py, as the method and its codec declare them: the most there can be, where a message's
length depends on the data.
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
from topologies import MixingMatrix, Schedule, Topology

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
    method: Algorithm, graph: Topology | Schedule, codec: Compressor, segments: Segments, t: int
) -> Round:
    """Round t (from 1) on the bucket of these tensors, as `gossip.join` with these objects would run it.

    Not for slices (`Algorithm.pieces`): each has an owner of its own, and so another busiest node.
    """
    nodes = list(traffic.views(graph, codec, segments))
    if method.kind == "gradient" or (method.uses_graph and _regular(graph.at(t))):
        nodes = nodes[:1]  # every node does the same: what one receives, one sends
    sent: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    received: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    largest: defaultdict[int, float] = defaultdict(float)
    coded: list[traffic.Declared] = []
    for message in traffic.messages(method, nodes, [t]):
        received[message.slot][message.to] += message.bytes
        sent[message.slot][message.frm] += message.bytes
        largest[message.slot] = max(largest[message.slot], message.bytes)
        if message.codec is not None:
            coded.append(message)
    if len(nodes) < graph.size:
        sent = received
    trips = tuple(
        Trip(max(*sent[slot].values(), *received[slot].values(), 0.0), largest[slot]) for slot in sorted(sent)
    )
    means = method.means(nodes[0])
    chain = tuple(trip for length in means for trip in mean_trips(4 * length, graph.size))
    by_node = [sum(slot[node.rank] for slot in sent.values()) for node in nodes]
    codec_used, values = (coded[0].codec, coded[0].values) if coded else (None, 0)
    if isinstance(codec_used, Keyed):
        codec_used = codec_used.values  # keys go beside the values, and take no coding
    encodes = 1 if len(sent) == 1 else graph.size  # what makes two trips goes in parts
    return Round(
        chains=tuple(filter(None, (trips, chain))),
        sent=max(by_node) + sum(mean_bytes(length, graph.size) for length in means),
        codec=codec_used,
        values=values,
        encodes=encodes if coded else 0,
        decodes=len(coded) / len(nodes) + 1 if coded else 0.0,
    )


def _regular(W: MixingMatrix) -> bool:
    """Whether all nodes send and receive the same number of messages. Of a complete graph there are n²."""
    degrees = {len(of(rank)) for of in (W.in_neighbors, W.out_neighbors) for rank in range(W.size)}
    return len(degrees) == 1


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
