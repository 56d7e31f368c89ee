"""P3, priority-based parameter propagation (Jayarajan et al. 2019, "Priority-based Parameter Propagation for
Distributed DNN Training", MLSys, arXiv 1905.03960, sec. 4).

Synchronous SGD through a parameter server that is sharded over the nodes. Layers are cut into slices, and
slice s has an owner, node s mod n, which is its server and also a worker. On node i, per slice:

    push g_i to the owner
    g ← (1/n) Σ_j g_j on the owner, when it has all n, which broadcasts it at once
    pull g

Symbols: g: float32 [n_slice]. Sent in 32 bit, 4 n_s bytes for each slice s of another owner, and (n−1) 4 n_s
for each of one's own: 2(n−1)/n · 4d per node if the shares are even, as much as a ring all-reduce.
A message has the priority of its layer, the layer's place in the forward pass. Of the messages that wait to
leave a node, pushes and broadcasts alike, the first layer's goes first, equals in the order they came, and
few are on their way at a time (outbox.py). A module waits for its own slices, not for the whole model
(lazy.py).
Laws: the mean is that of `allreduce`, in rank order; slices, order and bound do not change a bit of it.

slice=layer,order=fifo is what the paper compares with, MXNet's KVStore: one message per layer, in the order
of backward, with layers of more than 10^6 values cut evenly over all servers.

Differences with the paper: servers average, and every node's own optimizer applies the mean; a slice is cut
from all parameters of a module together (weight and bias), and a layer's slices are of equal length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from compressors import Compressor, NonFiniteError
from compressors.base import all_finite
from gossip.algorithms.base import GradientMethod, State, Steps, option, register
from gossip.algorithms.exchange import others, total
from gossip.effects import Expect, Node
from gossip.outbox import IN_FLIGHT, Posting

if TYPE_CHECKING:
    from gossip.flat import Pieces, Segment

BIG_LAYER = 1_000_000
"""KVStore cuts larger layers evenly over the servers (MXNET_KVSTORE_BIGARRAY_BOUND)."""


@register("p3")
@dataclass(frozen=True)
class P3(GradientMethod):
    """Synchronous SGD through sharded servers, in slices, the first layer's first."""

    paper: ClassVar[str] = "Jayarajan et al. 2019, arXiv 1905.03960"
    uses_compressor: ClassVar[bool] = False
    slots: ClassVar[int] = 1

    slice: int | Literal["layer"] = option(50_000, "most values in a slice; layer: uncut up to 10^6 values")
    order: Literal["priority", "fifo"] = option("priority", "what leaves first: first layers, or the oldest")
    in_flight: int = option(IN_FLIGHT, "messages on their way at a time")

    def __post_init__(self) -> None:
        if self.slice != "layer" and self.slice < 1:
            raise ValueError(f"slice={self.slice}: give a number of values, 1 or more, or layer")
        if self.in_flight < 1:
            raise ValueError(f"in_flight={self.in_flight}: give a number of messages, 1 or more")

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        g = yield node.gradient()
        if not all_finite(g):
            raise NonFiniteError("NaN or inf in a gradient")
        if node.rank == node.owner:
            pushed = yield node.receive(others(node))
            g.copy_(total(g, pushed, node).div_(node.size))
            node.send(g, to=_from_the_next(node), exact=True)
        else:
            node.send(g, to=(node.owner,), exact=True)
            g.copy_((yield node.receive((node.owner,)))[node.owner].decoded())

    def expects(self, node: Node) -> tuple[Expect, ...]:
        senders = others(node) if node.rank == node.owner else (node.owner,)
        return tuple(Expect(j, exact=True) for j in senders)

    @property
    def posting(self) -> Posting:
        return Posting(self.order == "priority", self.in_flight)

    def pieces(self, nodes: int) -> Pieces:
        def count(size: int) -> int:
            if self.slice == "layer":
                return nodes if size > BIG_LAYER else 1
            return math.ceil(size / self.slice)

        return count

    def notes(self, buckets: Sequence[Sequence[Segment]], size: int, compressor: Compressor) -> Iterator[str]:
        largest = max(sum(segment.size for segment in bucket) for bucket in buckets)
        yield f"p3: {len(buckets)} slices of at most {largest} values, dealt to {size} owners"


def _from_the_next(node: Node) -> list[int]:
    """All other ranks, this one's successor first, so that owners do not all send to one rank at once."""
    return [(node.rank + k) % node.size for k in range(1, node.size)]
