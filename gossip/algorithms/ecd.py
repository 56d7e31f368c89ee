"""ECD-PSGD, extrapolation compression (Tang et al. 2018, "Communication Compression for Decentralized
Training", arXiv 1803.06443, Alg. 2).

On node i, with an estimate x̃_j of every neighbour's x_j and of its own x_i, all started at the common x;
round t = 1, 2, …:

    x_new = Σ_j W_ij x̃_j + u_i       with the own *estimate*, not x_i
    z_i = (1 − t/2) x_i + (t/2) x_new
    x̃_j ← (1 − 2/t) x̃_j + (2/t) C(z_j)     for every neighbour j and for i itself
    x_i ← x_new

Symbols: x, x_new, z: float32 [n]; hat[j] = x̃_j; u = y − x, the local optimizer's step. Sent: C(z).
Laws: with C = identity x̃ = x to rounding; with noise of variance s per coordinate the variance V of an
estimate's error obeys V_{t+1} = (1 − 2/t)² V_t + 4s/t², so t·V → 4s/3. At t = 1 the factor is −1, at t = 2
it is 0: the history is wiped. z grows with t, so noise *relative* to z does not die out: see `check`.

Differences with the paper: u may be any optimizer's step, and `every` of them are taken between exchanges.
With one node and C = identity it is plain SGD to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from compressors import Compressor
from gossip.algorithms import theory
from gossip.algorithms.base import ParameterMethod, State, Steps, register
from gossip.effects import Node
from topologies import Schedule, Topology

LONG_RUN = 100_000  # rounds


@register("ecd")
@dataclass(frozen=True)
class ECD(ParameterMethod):
    """Compresses an extrapolation of the parameters; the noise of the estimates dies out as 1/t."""

    paper: ClassVar[str] = "Tang et al. 2018, arXiv 1803.06443, Alg. 2"
    needs_symmetric: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    def init(self, x: Tensor, node: Node) -> State:
        return {"hat": {j: x.clone() for j in (node.rank, *node.in_neighbors)}}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        hat, i, t = state["hat"], node.rank, node.t
        y = yield node.update()
        x_new = hat[i] + node.mix(hat[i], hat) + (y - x)
        own = node.send((1 - t / 2) * x + (t / 2) * x_new)
        x.copy_(x_new)
        yield node.settled()
        c = {j: message.decoded() for j, message in (yield node.receive()).items()}
        for j, c_j in {i: own, **c}.items():
            hat[j].mul_(1 - 2 / t).add_(c_j, alpha=2 / t)

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        # Noise relative to a message that grows with t: the estimates' error is about 3 alpha √t ‖Δx‖.
        a = theory.alpha(compressor)
        rounds = 1 / (3 * a) ** 2 if a > 0 else math.inf
        if compressor.relative_noise and rounds < LONG_RUN:
            yield (
                f"{self.name}: the noise of {compressor} grows with its messages, and they grow with t: "
                f"after about {rounds:.2g} rounds the estimates are off by a whole step. Take compressor "
                "grid, or algorithm dcd or choco, for long runs."
            )
