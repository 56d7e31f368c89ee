"""DCD-PSGD, difference compression (Tang et al. 2018, "Communication Compression for Decentralized
Training", arXiv 1803.06443, Alg. 1).

On node i, with a replica x̂_j of every neighbour's x_j, all started equal:

    z_i = Σ_j W_ij x̂_j + u_i − x_i
    x_i ← x_i + C(z_i)
    x̂_j ← x̂_j + C(z_j)              for every neighbour j

Symbols: x, z: float32 [n]; hat[j] = x̂_j; y = x + u, u the local optimizer's step. Sent: C(z).
Law: x̂_j is bitwise equal to x_j on its owner, on every node, always: owner and receivers add the same C(z_j).

Differences with the paper: u may be any optimizer's step, and `every` of them are taken between exchanges.
With one node x moves by C(u): plain SGD to rounding when C is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from compressors import Compressor
from gossip.algorithms import theory
from gossip.algorithms.base import ParameterMethod, State, Steps, register
from gossip.effects import Node
from topologies import Schedule, Topology

MARGIN = 2.0
"""The paper's bound on alpha is sufficient, not necessary: an unbiased codec is named only well above it."""


@register("dcd")
@dataclass(frozen=True)
class DCD(ParameterMethod):
    """Compresses the difference between successive parameters; neighbours keep exact replicas."""

    paper: ClassVar[str] = "Tang et al. 2018, arXiv 1803.06443, Alg. 1"
    needs_symmetric: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def init(self, x: Tensor, node: Node) -> State:
        return {"hat": {j: x.clone() for j in node.in_neighbors}}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        hat = state["hat"]
        y = yield node.update()
        z = node.mix(x, hat).add_(y).sub_(x)  # x_{t+1/2} − x_t
        node.send(z, add_to=x)
        yield node.settled()
        for j, c in (yield node.receive()).items():  # arrives during the next forward and backward
            c.add_to(hat[j])

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        a, bound = theory.alpha(compressor), theory.dcd_threshold(topology.at(1))
        if a > (MARGIN if compressor.unbiased else 1) * bound:
            bias = "" if compressor.unbiased else " and is biased"
            yield (
                f"{self.name}: {compressor} loses {a:.3g} of a message{bias}; theory asks for an unbiased "
                f"one that loses at most {bound:.3g} on {topology.name} with {topology.size} nodes "
                "(sufficient, not necessary). Take a finer codec, or choco."
            )
