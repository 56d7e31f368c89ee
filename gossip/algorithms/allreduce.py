"""All-reduce SGD: every node applies the mean gradient. The baseline of everything.

    g ← (1/n) Σ_j g_j

g: float32 [n], one bucket, reduced in 32 bit while backward is still producing the others. Bytes per node:
2(n−1)/n · 4d, the cost of a ring all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossip.algorithms.base import GradientMethod, State, Steps, register
from gossip.effects import Node


@register("allreduce")
@dataclass(frozen=True)
class AllReduce(GradientMethod):
    """Synchronous SGD on the mean gradient, in 32 bit."""

    uses_compressor: ClassVar[bool] = False
    sends_messages: ClassVar[bool] = False

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        g = yield node.gradient()
        g.copy_((yield node.mean(g)))

    def means(self, node: Node) -> tuple[int, ...]:
        return (node.n,)
