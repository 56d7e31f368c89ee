"""Local SGD without any exchange: every node trains alone.

    x_i ← x_i + u_i

Not a method from a paper: the lower control, which shows what the exchange is worth. x, u: float32 [n].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from compressors import Compressor, PaperSize, Shape
from gossip.algorithms.base import ParameterMethod, State, Steps, register
from gossip.effects import Expect, Node


@register("local")
@dataclass(frozen=True)
class Local(ParameterMethod):
    """No exchange: every node trains alone."""

    uses_graph: ClassVar[bool] = False
    uses_compressor: ClassVar[bool] = False

    def expects(self, node: Node) -> tuple[Expect, ...]:
        return ()

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        y = yield node.update()
        x.copy_(y)
        yield node.settled()

    def paper_size(self, shapes: Sequence[Shape], compressor: Compressor) -> PaperSize:
        return PaperSize(0, "none")
