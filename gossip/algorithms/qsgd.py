"""QSGD, also called Quant-DP (Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding", arXiv 1610.02132, Alg. 1).

On node i, with the error e_i = 0 at the start:

    g ← (1/n) Σ_j C(g_j)                                               ef=false, the paper
    p_i = g_i + e_i;   g ← (1/n) Σ_j c C(p_j);   e_i ← p_i − c C(p_i)  ef=true

Symbols: g, p, e: float32 [n], a bucket; c = 1/(1 + ω) makes an unbiased C of relative variance ω a
contraction (1 for small ω and for biased C). Sent: C(g) or C(p), by default 8 bits a value in blocks of 512,
to all nodes or in parts (exchange.py), where the mean is quantized once more.
Laws: without ef the mean is unbiased if C is; with ef n·g + Σ_i e_i (new) = Σ_i g_i + Σ_i e_i (old), to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from compressors import Compressor
from gossip.algorithms import exchange, theory
from gossip.algorithms.base import GradientMethod, State, Steps, option, register
from gossip.effects import Expect, Node
from gossip.flat import Segment
from topologies import Schedule, Topology


@register("qsgd")
@dataclass(frozen=True)
class QSGD(GradientMethod):
    """The mean of quantized gradients, with or without error feedback."""

    paper: ClassVar[str] = "Alistarh et al. 2017, arXiv 1610.02132"
    default_compressor: ClassVar[str] = "qsgd:bits=8,norm=max,block=512"

    ef: bool = option(False, "error feedback: carry what the codec loses to the next step")
    gather: Literal["auto", "all", "scatter"] = option("auto", "messages to all, in parts (scatter), or auto")

    def init(self, x: Tensor, node: Node) -> State:
        return {"e": torch.zeros_like(x)} if self.ef else {}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        g = yield node.gradient()
        if self.ef:
            p = g + state["e"]
            mean, own = yield from exchange.compressed_mean(
                p, node, self.gather, theory.scale(node.compressor)
            )
            torch.sub(p, own, out=state["e"])
        else:
            mean, _ = yield from exchange.compressed_mean(g, node, self.gather)
        g.copy_(mean)

    def expects(self, node: Node) -> tuple[Expect, ...]:
        return tuple(exchange.expects(node, self.gather))

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        if self.ef:
            return
        omega = theory.alpha(compressor) ** 2
        if not compressor.unbiased and omega > theory.SMALL_NOISE:
            yield (
                f"{self.name}: {compressor} is biased, and without error feedback what it loses is lost for "
                f"good. Take {self.name}:ef=true."
            )
        elif omega > 1:
            yield (
                f"{self.name}: the noise of {compressor} is {omega:.2g} times as large as the gradient "
                f"(squared norms), so steps must be smaller. Take more bits, a smaller block, or "
                f"{self.name}:ef=true."
            )

    def notes(self, buckets: Sequence[Sequence[Segment]], size: int, compressor: Compressor) -> Iterator[str]:
        yield f"{self.name}: {exchange.describe(self.gather, buckets, size, compressor)}"
