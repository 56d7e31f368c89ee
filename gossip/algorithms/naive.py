"""Naive quantized gossip: D-PSGD that sends C(x) in place of x. It does not converge.

    x_i ← W_ii x_i + Σ_{j≠i} W_ij C(x_j) + u_i

The error of C is relative to the parameters themselves, not to their changes, and is added anew in every
round, so it never dies out. Kept as the control that shows why DCD, ECD and CHOCO exist (Tang et al. 2018,
arXiv 1803.06443, discuss it before their Alg. 1).

Symbols: x, y = x + u: float32 [n]. Sent: C(x). With one node it is plain SGD, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from compressors import Compressor
from gossip.algorithms.base import ParameterMethod, State, Steps, register
from gossip.effects import Node
from topologies import Schedule, Topology


@register("naive")
@dataclass(frozen=True)
class Naive(ParameterMethod):
    """D-PSGD with compressed parameters; a control that does not converge."""

    hides: ClassVar[bool] = True

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        node.send(x)
        y = yield node.update()
        c = yield node.receive()
        x.copy_(y + node.mix(x, c))
        yield node.settled()

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        if compressor.lossless:
            return
        yield "naive is a control that does not converge: the codec's error is added anew in every round"
