"""CHOCO-SGD (Koloskova et al. 2020, "Decentralized Deep Learning with Arbitrary Communication Compression",
arXiv 1907.09356, Alg. 1).

On node i, with x̂ = 0 at the start on all nodes:

    q_i = c C(x_i − x̂_i)
    x̂_j ← x̂_j + q_j                 for every neighbour j and for i itself
    x_i ← x_i + u_i + γ Σ_j W_ij (x̂_j − x̂_i)

Symbols: x, q: float32 [n]; y = x + u, u the local optimizer's step; hat = x̂_i; s = Σ_j W_ij x̂_j, which is all
that the sum needs, so three vectors are kept in all; gamma = γ, the consensus step; c = 1/(1 + ω) makes an
unbiased C of relative variance ω a contraction (1 for small ω and for biased C). Sent: C(x − x̂).
Law: the mean of x over the nodes moves by the mean of u, whatever C loses.

Differences with the paper: u may be any optimizer's step, and `every` of them are taken between exchanges;
γ defaults to the codec's own value; ω is measured, not the worst case. (The form of arXiv 1902.00340, Alg. 2,
compresses after the gradient step instead; this one hides its messages behind the gradient.)
With one node it is plain SGD, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compressors import Compressor
from gossip.algorithms import theory
from gossip.algorithms.base import ParameterMethod, State, Steps, option, register
from gossip.effects import Node
from topologies import Schedule, Topology


@register("choco")
@dataclass(frozen=True)
class CHOCO(ParameterMethod):
    """Gossip on compressed differences to shared estimates; works with biased codecs."""

    paper: ClassVar[str] = "Koloskova et al. 2020, arXiv 1907.09356, Alg. 1"
    needs_symmetric: ClassVar[bool] = True
    hides: ClassVar[bool] = True

    gamma: float | None = option(None, "consensus step in (0, 1]; by default the codec's")

    def __post_init__(self) -> None:
        super().__post_init__()
        theory.check_gamma(self.gamma)

    def init(self, x: Tensor, node: Node) -> State:
        return {"hat": torch.zeros_like(x), "s": torch.zeros_like(x)}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        hat, s, c = state["hat"], state["s"], theory.scale(node.compressor)
        gamma = self.gamma or theory.default_gamma(node.compressor)
        q = node.send(x - hat)  # hidden behind this round's forward and backward
        y = yield node.update()
        q_j = yield node.receive()
        hat += c * q
        s += c * (q + node.mix(q, q_j))  # c Σ_j W_ij q_j
        x.copy_(y + gamma * (s - hat))
        yield node.settled()

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        yield from theory.gamma_warnings(self.name, self.gamma, compressor)
