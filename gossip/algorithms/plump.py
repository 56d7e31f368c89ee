"""Plump-DP: the plain synchronous parameter server (Li et al. 2014, "Scaling Distributed Machine Learning
with the Parameter Server", OSDI; named, and used as the baseline, by Sun et al. 2017, arXiv 1709.09393).

The server is sharded: node k is a worker, and it owns part k of n even parts of every bucket. On node i:

    y_i = x_i after `every` (the paper's p) local optimizer steps, x_i = w̄ at the start
    δ_i = y_i − x_i                              pushed, part k to node k
    w̄ ← w̄ + (1/n) Σ_j δ_j                        on the part that node i owns
    x_i ← w̄                                      pulled, part k from node k

Symbols: x, y, δ: float32 [n_bucket]; w̄ is x itself, bitwise the same on all nodes after every round. Sent:
float32 both ways, 2(n−1)/n · 4d bytes in all, as much as a ring all-reduce.
Law: with every=1 and SGD, with or without momentum and weight decay, it is all-reduce SGD, to rounding.

Nothing is stale, so the next forward waits for the pull, and the exchange is not hidden behind it; buckets
(`bucket_mb`) keep pushes, sums and pulls of different parts in flight at once.
Differences with the paper: δ may come from any optimizer. With one node it is plain SGD to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossip.algorithms.base import ParameterMethod, State, Steps, register
from gossip.algorithms.exchange import others, total
from gossip.effects import Expect, Node
from gossip.flat import even_parts

PUSH, PULL = 0, 1  # slots


@register("plump")
@dataclass(frozen=True)
class PlumpDP(ParameterMethod):
    """Parameter server sharded over the nodes: push the whole update, pull the whole model."""

    paper: ClassVar[str] = "Li et al. 2014, OSDI; Sun et al. 2017, arXiv 1709.09393"
    uses_graph: ClassVar[bool] = False
    uses_compressor: ClassVar[bool] = False

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        parts = _parts(node)
        y = yield node.update()
        delta = y - x
        for k in others(node):
            if k in parts:
                node.send(delta[parts[k]], to=(k,), exact=True, slot=PUSH)
        if node.rank in parts:
            mine = parts[node.rank]
            pushed = yield node.receive(others(node), slot=PUSH)
            x[mine] += total(delta[mine], pushed, node) / node.size
            node.send(x[mine], to=others(node), exact=True, slot=PULL)
        for k in others(node):
            if k in parts:
                x[parts[k]] = (yield node.receive((k,), slot=PULL))[k].decoded()
        yield node.settled()

    def expects(self, node: Node) -> tuple[Expect, ...]:
        parts, found = _parts(node), list[Expect]()
        for j in others(node):
            if node.rank in parts:
                found.append(Expect(j, exact=True, slot=PUSH, size=_size(parts[node.rank])))
            if j in parts:
                found.append(Expect(j, exact=True, slot=PULL, size=_size(parts[j])))
        return tuple(found)


def _parts(node: Node) -> dict[int, slice]:
    """What each node owns of the bucket; a small bucket has fewer owners than there are nodes."""
    return {k: at for k, at in enumerate(even_parts(node.n, node.size)) if _size(at)}


def _size(at: slice) -> int:
    return int(at.stop - at.start)
