"""What a round sends, from what the method declares: its messages (`expects`) and exact means (`means`).

No data, model or network is needed, so this works for any model and number of nodes. The tests hold it
against what the transport counts in training, for every method.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from compressors import Compressor
from gossip.algorithms import Algorithm
from gossip.effects import Node
from gossip.flat import Segment
from gossip.outbox import Outbox, Posting
from gossip.stats import Stats
from gossip.transport.base import mean_bytes
from gossip.transport.local import World
from topologies import Schedule, Topology


@dataclass(frozen=True)
class Traffic:
    """Bytes that each rank sends, by rank. At most these, unless `exact`: then some message's length depends
    on the data."""

    sent: tuple[float, ...]
    exact: bool

    @property
    def mean(self) -> float:
        """Per node."""
        return sum(self.sent) / len(self.sent)

    @property
    def most(self) -> float:
        """Of the busiest node."""
        return max(self.sent)


def of_rounds(
    method: Algorithm,
    graph: Topology | Schedule,
    codec: Compressor,
    buckets: Iterable[Sequence[Segment]],
    rounds: Sequence[int],
) -> Traffic:
    """What is sent in these rounds, counted from 1, altogether.

    Args:
        method, graph, codec: as given to `gossip.join`.
        buckets: the tensors of each bucket, as `FlatModel` cuts them.
    """
    sent, exact = [0] * graph.size, True
    for b, segments in enumerate(buckets):
        nodes = list(views(graph, codec, segments, b))
        for message in messages(method, nodes, rounds):
            sent[message.frm] += message.bytes
            exact = exact and (message.codec is None or message.codec.fixed_size)
        for node, t in itertools.product(nodes, rounds):
            node.t = t
            sent[node.rank] += sum(mean_bytes(length, node.size) for length in method.means(node))
    return Traffic(tuple(sent), exact)


class Declared(NamedTuple):
    """A message of a round: `values` values, of which `codec` (None: float32) makes at most `bytes` bytes."""

    frm: int
    to: int
    slot: int
    codec: Compressor | None
    values: int
    bytes: int


def messages(method: Algorithm, nodes: Sequence[Node], rounds: Iterable[int]) -> Iterator[Declared]:
    """All that these nodes receive in these rounds."""
    for t, node in itertools.product(rounds, nodes):
        node.t = t
        for e in method.expects(node):
            yield Declared(e.frm, node.rank, e.slot, *node.reads(e), node.most_bytes(e))


def views(
    graph: Topology | Schedule, codec: Compressor, segments: Sequence[Segment], bucket: int = 0
) -> Iterator[Node]:
    """Every rank's view of a bucket, to ask a method what it declares; nothing can be sent."""
    bound = codec.for_segments([segment.size for segment in segments])
    for transport in World(graph.size).nodes:
        yield Node(
            transport=transport,
            outbox=Outbox(transport, Posting()),
            topology=graph,
            compressor=bound,
            stats=Stats(),
            segments=tuple(segments),
            device=torch.device("cpu"),
            bucket=bucket,
            seed=0,
            tag=0,
            label="",
        )


def recurring(method: Algorithm, graph: Topology | Schedule) -> range:
    """Rounds whose traffic repeats in a long run, after any warm-up."""
    first, period = method.recurring(), 1 if isinstance(graph, Topology) else graph.period
    return range(first.start, first.start + len(first) * period)


def per_step(
    method: Algorithm,
    graph: Topology | Schedule,
    codec: Compressor,
    buckets: Sequence[Sequence[Segment]],
    first: int | None = None,
) -> Traffic:
    """What an optimizer step sends in a long run, after any warm-up; or the mean over the `first` so many.

    Of the first, whole rounds count: where every=H does not divide them, some methods have begun another.
    """
    rounds = recurring(method, graph) if first is None else range(1, first // method.every + 1)
    steps = len(rounds) * method.every if first is None else first
    total = of_rounds(method, graph, codec, buckets, rounds)
    return Traffic(tuple(bytes / steps for bytes in total.sent), total.exact)
