"""How gradient methods average compressed vectors over all nodes: two ways, and which one is cheaper.

all      every node sends C(p_i) to every other one:

             mean = (1/n) Σ_j C(p_j)                          (n − 1) messages of d values sent per node

scatter  the vector is cut into n even parts, and node k owns part k, as in a ring all-reduce:

             r = (1/n) (p_k + Σ_{j≠k} C(p_j))  on part k      (n − 1) messages of d/n values sent per node
             mean = C(r)                                      (n − 1) messages of d/n values sent per node

So scatter sends 2/n of the bytes and decodes 2 d values in place of n d, but it quantizes twice, and its
second half waits for the first. auto takes scatter where it saves more than `ROUND_TRIP` bytes per node.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gossip.effects import Effect, Expect, Message, Node
from gossip.flat import even_parts

if TYPE_CHECKING:
    from compressors import Compressor
    from gossip.flat import Segment

Gather = Literal["auto", "all", "scatter"]

ROUND_TRIP = 1 << 16
"""Bytes that a second trip through the network is worth. Measured between 4 hosts: both ways take the same
time where scatter saves 66 kB at 100 Mbit/s and 5 ms, and 50 kB at 20 Mbit/s and 20 ms, interpolated
(experiments/results/gather-or-scatter). Within one host all is quicker at any size; but the choice changes
what is rounded, so it depends on nothing but shapes, and virtual nodes compute what a cluster does."""


@dataclass(frozen=True)
class Part:
    """A slice of the bucket with an owner, and the codec for vectors of its length."""

    at: slice
    size: int
    codec: Compressor


def parts(segments: Sequence[Segment], n: int, codec: Compressor) -> list[Part]:
    """The bucket in n even parts, by owner; they differ by one value at most and may be empty."""
    cut = []
    for at in even_parts(sum(s.size for s in segments), n):
        inside = [min(at.stop, s.offset + s.size) - max(at.start, s.offset) for s in segments]
        part = codec.for_segments([size for size in inside if size > 0])
        cut.append(Part(at, at.stop - at.start, part))
    return cut


def scatters(gather: Gather, segments: Sequence[Segment], n: int, codec: Compressor) -> bool:
    """Whether a bucket is scattered."""
    if gather != "auto":
        return gather == "scatter" and n > 1
    return n > 2 and sent(False, segments, n, codec) - sent(True, segments, n, codec) > ROUND_TRIP


def sent(scatter: bool, segments: Sequence[Segment], n: int, codec: Compressor, rank: int = 0) -> int:
    """Bytes that `rank` sends for one bucket (at most, if the codec's messages vary in length)."""
    if not scatter:
        d = sum(s.size for s in segments)
        return (n - 1) * codec.for_segments([s.size for s in segments]).max_bytes(d)
    message = [part.codec.max_bytes(part.size) if part.size else 0 for part in parts(segments, n, codec)]
    return sum(message) + (n - 2) * message[rank]


def others(node: Node) -> tuple[int, ...]:
    """All ranks but this one."""
    return tuple(j for j in range(node.size) if j != node.rank)


def expects(node: Node, gather: Gather) -> Iterator[Expect]:
    """The messages of `compressed_mean`."""
    if not scatters(gather, node.segments, node.size, node.compressor):
        yield from (Expect(j) for j in others(node))
        return
    cut = parts(node.segments, node.size, node.compressor)
    mine = cut[node.rank]
    for j in others(node):
        if mine.size:
            yield Expect(j, slot=0, codec=mine.codec, size=mine.size)
        if cut[j].size:
            yield Expect(j, slot=1, codec=cut[j].codec, size=cut[j].size)


def compressed_mean(
    p: Tensor, node: Node, gather: Gather, c: float = 1.0
) -> Generator[Effect, Any, tuple[Tensor, Tensor]]:
    """The mean over nodes of c·C(p_i), and what this node has put into it; both float32 [n].

    Summed over the nodes, the second result is n times the first: so p − own is the error that error feedback
    carries on. When the parts are scattered, an owner also carries what its second quantization has lost.
    The mean is bitwise the same on all nodes.
    """
    if scatters(gather, node.segments, node.size, node.compressor):
        return (yield from _scatter(p, node, c))
    own = node.send(p, to=others(node))
    messages = yield node.receive(others(node))
    return total(own, messages, node).mul_(c / node.size), own.mul_(c)


def total(own: Tensor, messages: Mapping[int, Message], node: Node) -> Tensor:
    """`own` plus the messages of all other nodes, in rank order: the same bits everywhere. A fresh tensor."""
    out = torch.zeros_like(own)
    for j in range(node.size):
        if j == node.rank:
            out += own
        else:
            messages[j].add_to(out)
    return out


def _scatter(p: Tensor, node: Node, c: float) -> Generator[Effect, Any, tuple[Tensor, Tensor]]:
    cut = parts(node.segments, node.size, node.compressor)
    here, mean, own = cut[node.rank], torch.empty_like(p), torch.empty_like(p)
    for j in others(node):
        if cut[j].size:
            torch.mul(node.send(p[cut[j].at], to=(j,), codec=cut[j].codec), c, out=own[cut[j].at])
    if here.size:
        messages = yield node.receive(others(node))
        r = p[here.at].clone()
        for j in others(node):
            messages[j].add_to(r, c)
        r /= node.size
        torch.mul(node.send(r, to=others(node), slot=1, codec=here.codec), c, out=mean[here.at])
        torch.sub(p[here.at], (r - mean[here.at]).mul_(node.size), out=own[here.at])
    finals = yield node.receive([j for j in others(node) if cut[j].size], slot=1)
    for j, message in finals.items():
        torch.mul(message.decoded(), c, out=mean[cut[j].at])
    return mean, own


def describe(gather: Gather, buckets: Sequence[Sequence[Segment]], n: int, codec: Compressor) -> str:
    """One line on how the buckets travel, and what it costs rank 0 per step either way."""
    chosen = [scatters(gather, segments, n, codec) for segments in buckets]
    scattered = sum(chosen)
    way = f"all for {len(buckets) - scattered} buckets, scatter for {scattered}"
    if scattered in (0, len(buckets)):
        way = "scatter" if scattered else "all"
    cost = sum(sent(s, segments, n, codec) for s, segments in zip(chosen, buckets, strict=True))
    alternatives = (sum(sent(s, segments, n, codec) for segments in buckets) for s in (False, True))
    return "gather={}: {} bytes per step and node (all: {}, scatter: {})".format(way, cost, *alternatives)
