"""D-PSGD (Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case
Study for Decentralized Parallel Stochastic Gradient Descent", arXiv 1705.09056, Alg. 1).

On node i, with u_i the local optimizer's step taken at x_i:

    order=mix    x_i ← Σ_j W_ij x_j + u_i          the paper: exchange and gradient run in parallel
    order=atc    x_i ← Σ_j W_ij (x_j + u_j)        adapt-then-combine: the exchange waits for the optimizer

Symbols: x, y = x + u: float32 [n]. Sent: x (y for atc), exactly, in 32 bit.

Differences with the paper: u may be any optimizer's step, and `every` of them are taken between exchanges.
With one node both orders are plain SGD, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gossip.algorithms.base import ParameterMethod, State, Steps, option, register
from gossip.effects import Node


@register("dpsgd")
@dataclass(frozen=True)
class DPSGD(ParameterMethod):
    """Decentralized SGD: mix the neighbours' exact parameters, add the local step."""

    paper: ClassVar[str] = "Lian et al. 2017, arXiv 1705.09056"
    uses_compressor: ClassVar[bool] = False

    order: Literal["mix", "atc"] = option("mix", "mix: x ← Wx + u, hides the exchange; atc: x ← W(x + u)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("mix", "atc"):
            raise ValueError(f"order={self.order}: give order=mix or order=atc")

    @property
    def hides(self) -> bool:  # type: ignore[override]
        return self.order == "mix"

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        if self.order == "mix":
            node.send(x, exact=True)  # hidden behind this round's forward and backward
            y = yield node.update()
            x_j = yield node.receive()
            x.copy_(y + node.mix(x, x_j))
        else:
            y = yield node.update()
            node.send(y, exact=True)
            y_j = yield node.receive()
            x.copy_(y + node.mix(y, y_j))
        yield node.settled()
