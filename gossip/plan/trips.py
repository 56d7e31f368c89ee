"""What a round sends, as trips through the network. The one place where the planner's byte counts come from.

A *trip* is what travels at the same time; a *chain* is trips of which each waits for the one before. A
neighbour method makes one trip, an all-reduce a chain of 2 log₂ n. Messages are those that the method itself
declares (`Algorithm.expects`), in the size that its codec declares (`max_bytes`); where a message's length
depends on the data, that is the most it can be.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from compressors import Compressor
from gossip.algorithms import DGC, Algorithm, AllReduce, GradientDropping, PowerSGD
from gossip.algorithms.sparse import weights
from gossip.effects import Expect, Node
from gossip.flat import Segment
from gossip.stats import Stats
from gossip.transport.local import World
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
    method: Algorithm, graph: Topology | Schedule, codec: Compressor, segments: Segments, t: int
) -> Round:
    """Round t (from 1) on the bucket of these tensors, as `gossip.join` with these objects would run it."""
    nodes = list(_nodes(method, graph, codec, segments))
    sent: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    received: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    largest: defaultdict[int, float] = defaultdict(float)
    coded: list[tuple[Compressor, int]] = []
    for node in nodes:
        node.t = t
        for e in method.expects(node):
            reader, size = reads(e, node)
            coded += [] if reader is None else [(reader, node.n if e.size is None else e.size)]
            received[e.slot][node.rank] += size
            sent[e.slot][e.frm] += size
            largest[e.slot] = max(largest[e.slot], size)
    if len(nodes) < graph.size:  # every node does the same: what one receives, one sends
        sent = received
    trips = tuple(
        Trip(max(*sent[slot].values(), *received[slot].values(), 0.0), largest[slot]) for slot in sorted(sent)
    )
    means = mean_lengths(method, segments)
    chain = tuple(trip for length in means for trip in mean_trips(4 * length, graph.size))
    by_node = [sum(slot[node.rank] for slot in sent.values()) for node in nodes]
    codec_used, values = coded[0] if coded else (None, 0)
    return Round(
        chains=tuple(filter(None, (trips, chain))),
        sent=max(by_node) + sum(2 * (graph.size - 1) / graph.size * 4 * length for length in means),
        codec=codec_used,
        values=values,
        encodes=0
        if not coded
        else 1
        if len(sent) == 1
        else graph.size,  # in a second trip the vector in parts
        decodes=len(coded) / len(nodes) + 1 if coded else 0.0,
    )


def reads(e: Expect, node: Node) -> tuple[Compressor | None, int]:
    """What decodes an expected message (None: it is float32), and the most bytes that it takes."""
    size = node.n if e.size is None else e.size
    if e.exact:
        return None, 4 * size
    codec = node.compressor if e.codec is None else e.codec
    return codec, codec.max_bytes(size)


def mean_lengths(method: Algorithm, segments: Segments) -> tuple[int, ...]:
    """The lengths of the vectors that a round averages exactly, one after the other."""
    total = sum(s.size for s in segments)
    if isinstance(method, AllReduce):
        return (total,)
    if isinstance(method, PowerSGD):
        matrices = method.matrices(segments)
        dense = total - sum(m.segment.size for m in matrices)
        return (sum(m.rows * m.rank for m in matrices) + dense, sum(m.columns * m.rank for m in matrices))
    if isinstance(method, DGC | GradientDropping):
        dense_1d = getattr(method, "dense_1d", True)
        return (total - sum(s.size for s in weights(segments, dense_1d)),)
    return ()


def mean_trips(size: float, n: int) -> Chain:
    """The trips of an all-reduce of `size` bytes over n nodes, as Open MPI does it without blocking.

    Long vectors by Rabenseifner's algorithm: halves, quarters, … are exchanged and added, and come back the
    same way; where n is no power of two the nodes beyond it first join another, and get the result from it.
    Short ones, and among fewer than 4 nodes all, up and down a binomial tree.
    """
    if n == 1 or size == 0:
        return ()
    if n < 4 or size < TREE_BELOW:
        return (*[Trip(size, size)] * math.ceil(math.log2(n)), *_down_the_tree(size, n))
    levels = int(math.log2(n))
    halves = [size / 2**k for k in range(1, levels + 1)]
    fold = [] if n == 2**levels else [size / 2, size / 2]
    spread = [size] if fold else []
    return tuple(Trip(b, b) for b in (*fold, *halves, *reversed(halves), *spread))


def _down_the_tree(size: float, n: int) -> Iterator[Trip]:
    """A binomial broadcast along its longest branch: node 2^s − 1 sends to all its children at once."""
    for s in itertools.count():
        children = sum(2**s - 1 + 2**r < n for r in range(s, math.ceil(math.log2(n))))
        if children == 0:
            return
        yield Trip(children * size, size)


def _nodes(
    method: Algorithm, graph: Topology | Schedule, codec: Compressor, segments: Segments
) -> Iterator[Node]:
    """Every rank's view of the bucket; of a gradient method, whose graph is complete, one rank's."""
    transports = World(graph.size).nodes
    for transport in transports if method.kind == "parameter" else transports[:1]:
        yield Node(
            transport=transport,
            topology=graph,
            compressor=codec.for_segments([s.size for s in segments]),
            stats=Stats(),
            segments=segments,
            device=torch.device("cpu"),
            bucket=0,
            seed=0,
            tag=0,
            channel=0,
        )


def recurring(method: Algorithm, graph: Topology | Schedule) -> Sequence[int]:
    """Rounds whose traffic repeats in a long run, after any warm-up."""
    first = getattr(method, "warmup_steps", 0) + 1
    return range(first, first + (1 if isinstance(graph, Topology) else graph.period))
