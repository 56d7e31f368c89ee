"""DeepSqueeze (Tang et al. 2019, "DeepSqueeze: Decentralization Meets Error-Compensated Compression",
arXiv 1907.07346).

On node i, with the error e_i = 0 at the start:

    v_i = x_i + u_i + e_i
    m_i = c C(v_i);   e_i ← v_i − m_i
    x_i ← x_i + u_i + γ Σ_j W_ij (m_j − m_i)

Symbols: x, v, m, e: float32 [n]; y = x + u, u the local optimizer's step; gamma = γ, the consensus step;
c = 1/(1 + ω) makes an unbiased C of relative variance ω a contraction (1 for small ω and for biased C). Sent:
C(v), after the optimizer, so the exchange is not hidden.
Law: the mean of x over the nodes moves by the mean of u, whatever C loses (W doubly stochastic).

Differences with the paper: u may be any optimizer's step, and `every` of them are taken between exchanges;
γ defaults to the codec's own value; ω is measured, not the worst case.
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


@register("deepsqueeze")
@dataclass(frozen=True)
class DeepSqueeze(ParameterMethod):
    """Gossip on compressed parameters with error feedback; works with biased codecs."""

    paper: ClassVar[str] = "Tang et al. 2019, arXiv 1907.07346"

    gamma: float | None = option(None, "consensus step in (0, 1]; by default the codec's")

    def __post_init__(self) -> None:
        super().__post_init__()
        theory.check_gamma(self.gamma)

    def init(self, x: Tensor, node: Node) -> State:
        return {"e": torch.zeros_like(x)}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        e, c = state["e"], theory.scale(node.compressor)
        gamma = self.gamma or theory.default_gamma(node.compressor)
        y = yield node.update()
        v = y + e
        m = node.send(v)
        torch.sub(v, c * m, out=e)
        m_j = yield node.receive()
        x.copy_(y + gamma * c * node.mix(m, m_j))
        yield node.settled()

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        yield from theory.gamma_warnings(self.name, self.gamma, compressor)
