"""Slim-DP (Sun et al. 2017, "Slim-DP: A Light Communication Data Parallelism for DNN", arXiv 1709.09393).

A parameter server with which every worker exchanges only a part of the model: the *core*, the share β of the
parameters that matter most, and an *explorer*, a random share α − β of the others, drawn anew by every worker
in every round. The server is sharded as in plump.py: node k holds w̄ on part k. On node i, in round t:

    T_i = core ∪ explorer_i
    y_i = x_i after `every` (the paper's p) local optimizer steps
    δ_i = y_i − x_i                                          residual=drop, the paper
    δ_i = y_i − x_i + e_i;   e_i ← δ_i − C(T_i(δ_i))         residual=keep; e_i = 0 at the start
    push C(T_i(δ_i)), in every q-th round C(δ_i)
    w̄ ← w̄ + η Σ_j C(T_j(δ_j))                                η = 1/n, or 1/(how many pushed the coordinate)
    pull C(T_i(w̄))
    x_i ← C(w̄) on T_i, y_i elsewhere
    in every q-th round then: core ← the β n_bucket coordinates with the largest
        S = |w̄|/mean|w̄| + c |g|/mean|g|                      g: what w̄ has just moved by

Symbols: x, y, δ, e: float32 [n_bucket]; w = w̄, float32, and core, int64, per shard; C: the codec of the
values, exact by default, which with residual=keep is multiplied by 1/(1 + ω) in a push if it is unbiased
with a large variance ω. A node's own shard is at hand: nothing of it is encoded. The first core has the
largest |w_0|. Of d_k values in shard k, max(1, round(α d_k)) are exchanged, round(β d_k) of them as the
core.
Sent: see compressors/keyed.py and docs/parameter-server.md. Keys of the core travel once, behind the next
forward; then both sides hold the list, and its signature in every message makes a stale list an error. Keys
of an explorer travel with the push (keys=sent, the paper), or owners draw them again (keys=seed).
Laws: alpha=1 is plump, bit for bit; so is keys=seed keys=sent, in fewer bytes; with an exact C all nodes
hold the same values on the core; with residual=keep and eta=mean, n w̄ + Σ_i e_i moves by Σ_i u_i alone,
whatever C loses (u_i: the local optimizers' steps).

Differences with the paper: the core is chosen shard by shard; c is counted in units of mean|w̄|/mean|g|, so
it needs no learning rate; δ may come from any optimizer; a full push is followed by a pull on T_i as any
other; residual=keep is an addition. The models differ between nodes; what is tested is their mean. With one
node residual=keep is plain SGD to rounding; residual=drop still drops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from compressors import Compressor, PaperSize, Shape
from compressors.keyed import signature
from compressors.sparse import largest
from compressors.topk import kept
from gossip.algorithms import theory
from gossip.algorithms.base import ParameterMethod, State, Steps, option, register
from gossip.algorithms.slim_exchange import Round, Shard, expects, sent
from gossip.effects import Expect, Node
from gossip.flat import Segment, even_parts
from topologies import Schedule, Topology

PULL_ERROR = 0.05
"""What the codec may lose of the parameters themselves, in norms: 8 bits lose .01, 4 bits .19."""


@register("slim")
@dataclass(frozen=True)
class SlimDP(ParameterMethod):
    """Parameter server that exchanges the most significant parameters and a random part of the others."""

    paper: ClassVar[str] = "Sun et al. 2017, arXiv 1709.09393"
    uses_graph: ClassVar[bool] = False

    alpha: float = option(0.3, "share of the parameters that is exchanged, in (0, 1]")
    beta: float = option(0.15, "share of the parameters in the core, in [0, alpha]")
    q: int = option(50, "in every q-th exchange the push is full, and the core is chosen anew")
    residual: Literal["drop", "keep"] = option("drop", "drop what is not pushed (paper), or push it later")
    keys: Literal["sent", "seed"] = option("sent", "an explorer's keys travel (paper), or come from the seed")
    eta: Literal["mean", "per-coordinate"] = option("mean", "divide by all workers, or by those that pushed")
    c: float = option(1.0, "significance: weight of the update beside the parameter, both over their means")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha}: give a share above 0, up to 1, such as 0.3")
        if not 0 <= self.beta <= self.alpha:
            raise ValueError(f"beta={self.beta}: give a share from 0 to alpha, which is {self.alpha}")
        if self.q < 1:
            raise ValueError(f"q={self.q}: give a whole number of exchanges, 1 or more")
        if not 0 <= self.c < float("inf"):
            raise ValueError(f"c={self.c}: give a weight of 0 or more")

    def init(self, x: Tensor, node: Node) -> State:
        shards = self.shards(node.n, node.size, node.compressor)
        core = {k: largest(x[s.at], s.core) for k, s in shards.items()}
        signatures = {k: torch.tensor(signature(keys)) for k, keys in core.items()}
        w = x[shards[node.rank].at].clone() if node.rank in shards else x.new_empty(0)
        e = {"e": torch.zeros_like(x)} if self.residual == "keep" else {}
        return {"core": core, "signature": signatures, "w": w, **e}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        keep, w, full = self.residual == "keep", state["w"], self.is_full(node.t)
        shards = self.shards(node.n, node.size, node.compressor)
        exchange = Round(shards, full, theory.scale(node.compressor) if keep else 1.0, state, node)
        y = yield node.update()
        delta = y - x + state["e"] if keep else y - x
        pushed = exchange.push(delta)
        if keep:
            exchange.take_out(state["e"].copy_(delta), pushed)
        total = yield from exchange.collect(pushed)
        g = total / (node.size if self.eta == "mean" else exchange.pushers())
        w += g
        exchange.answer()
        x.copy_(y)
        yield from exchange.pull(x)
        yield node.settled()
        if full:
            start = time.perf_counter()
            core = most_significant(w, g, self.c, shards[node.rank].core if node.rank in shards else 0)
            node.stats.spent("encode", start, node.label)
            yield from exchange.renew_core(core)

    def is_full(self, t: int) -> bool:
        """Whether round t pushes everything and ends with a new core."""
        return t % self.q == 0

    def shards(self, d: int, n: int, values: Compressor) -> dict[int, Shard]:
        """A bucket of d values on n nodes, by owner."""
        found = {}
        for k, at in enumerate(even_parts(d, n)):
            if size := at.stop - at.start:
                chosen, core = kept(size, self.alpha), round(self.beta * size)
                found[k] = Shard(at, core, chosen - core, values, self.keys == "sent")
        return found

    def expects(self, node: Node) -> tuple[Expect, ...]:
        shards = self.shards(node.n, node.size, node.compressor)
        return tuple(expects(shards, self.is_full(node.t), node))

    def recurring(self) -> range:
        return range(1, self.q + 1)

    def paper_size(self, shapes: Sequence[Shape], compressor: Compressor) -> PaperSize:
        """The paper counts a push, values and keys of 4 bytes, full pushes apart; a pull sends no keys."""
        values, d = compressor.paper_size(shapes), sum(map(math.prod, shapes))
        keys = 4 * (self.alpha - self.beta) * d if self.keys == "sent" else 0
        law = f"α · ({values.law})" + (" + 4 B · (α − β) · values" if keys else "")
        return PaperSize(self.alpha * values.bytes + keys, law)

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        if (a := theory.alpha(compressor)) > PULL_ERROR:
            yield (
                f"{self.name}: workers get the parameters through {compressor}, which loses {a:.2g} of them "
                f"(norms): training is unlikely to converge. Take a codec that loses at most {PULL_ERROR:g}, "
                "such as qsgd:bits=8 or fp16."
            )
        if self.residual == "keep" and self.eta == "per-coordinate":
            yield (
                "slim: with residual=keep every worker's update is pushed in the end, so eta=per-coordinate "
                "adds up to n times their mean outside the core. Take eta=mean, or residual=drop."
            )

    def notes(self, buckets: Sequence[Sequence[Segment]], size: int, compressor: Compressor) -> Iterator[str]:
        sizes = [sum(s.size for s in segments) for segments in buckets]
        shards = [self.shards(d, size, compressor) for d in sizes]
        usual, full = (sum(sent(s, full, 0, size) for s in shards) for full in (False, True))
        yield f"{self.name}: node 0 sends {usual} bytes per exchange, {full} in one of {self.q} (full push)"


def most_significant(w: Tensor, g: Tensor, c: float, size: int) -> Tensor:
    """The core: where S = |w|/mean|w| + c |g|/mean|g| is largest; int64 [size], ascending, in linear time."""
    return largest(_over_mean(w) + c * _over_mean(g), size)


def _over_mean(v: Tensor) -> Tensor:
    """|v| / mean|v|, of the shape of v; 0 if all of v is 0."""
    a = v.abs()
    mean = a.mean()
    return a.div_(torch.where(mean > 0, mean, 1))
