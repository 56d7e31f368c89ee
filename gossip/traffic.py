"""What a round sends, from what the method declares: its messages (`expects`) and exact means (`means`).

No data, model or network is needed, so this works for any model and number of nodes. The tests hold it
against what the transport counts in training, for every method.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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
    nodes = (node for b, segments in enumerate(buckets) for node in views(graph, codec, segments, b))
    for node, t in itertools.product(nodes, rounds):
        node.t = t
        for message in method.expects(node):
            reader, size = node.reads(message)
            sent[message.frm] += 4 * size if reader is None else reader.max_bytes(size)
            exact = exact and (reader is None or reader.fixed_size)
        sent[node.rank] += sum(mean_bytes(length, node.size) for length in method.means(node))
    return Traffic(tuple(sent), exact)


def views(
    graph: Topology | Schedule, codec: Compressor, segments: Sequence[Segment], bucket: int = 0
) -> Iterator[Node]:
    """Every rank's view of a bucket, to ask a method what it declares; nothing can be sent."""
    for transport in World(graph.size).nodes:
        yield Node(
            transport=transport,
            outbox=Outbox(transport, Posting()),
            topology=graph,
            compressor=codec.for_segments([segment.size for segment in segments]),
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
    method: Algorithm, graph: Topology | Schedule, codec: Compressor, buckets: Sequence[Sequence[Segment]]
) -> Traffic:
    """What an optimizer step sends in a long run, after any warm-up: the mean over the recurring rounds."""
    rounds = recurring(method, graph)
    total = of_rounds(method, graph, codec, buckets, rounds)
    steps = len(rounds) * getattr(method, "every", 1)
    return Traffic(tuple(bytes / steps for bytes in total.sent), total.exact)
