"""Deep Gradient Compression (Lin et al. 2018, arXiv 1712.01887, Alg. 1 and 4, with sec. 3).

On node i, per weight tensor, with u = v = 0 at the start; round t = 1, 2, …:

    g_i ← ∇f_i + λx
    g_i ← g_i min(1, θ√n / ‖g_i‖)                    local clipping; norm of the whole gradient, or per tensor
    u_i ← m u_i + g_i;        v_i ← v_i + u_i        momentum correction
    u_i ← m (u_i + g_i);      v_i ← v_i + u_i + g_i  the same with Nesterov's momentum
    C(v_i) = v_i where |v_i| is among the largest share r_t of its tensor, else 0
    v_i ← v_i − C(v_i)                               with values=fp16 the rounding error stays in v
    u_i ← 0 where C(v_i) ≠ 0                         momentum factor masking
    g ← (1/n) Σ_j C(v_j)

Symbols: g, u, v: float32 [n_bucket]; m, Nesterov and λ are those of the user's SGD groups, which keep only
the learning rate; clip = θ, what one would clip the mean gradient to; ratio = r. 1-D tensors (biases, batch
norm) are sent whole, with momentum correction and without masking. Warm-up: r_t = 4^−e in stage e = 1, 2, …
of equal length, as long as 4^−e > r: 75, 93.75, 98.4, 99.6 % sparse, then r.
Sent: C(v) to all nodes, as 16-bit run lengths and values (compressors/layer_topk.py), and the mean of the 1-D
tensors. Laws: sent + residual = sum of inputs, exactly; ratio=1,masking=false,warmup_steps=0 is momentum SGD;
with m = 0 it is plain error feedback.

Differences with the paper: everything is kept times n, and the mean taken at the end (the same numbers); the
warm-up is told in steps; λx is added before clipping and accumulated like the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from compressors import Compressor
from gossip.algorithms.base import Adoption, State, Steps, option, register
from gossip.algorithms.momentum import MomentumAdoption, alike
from gossip.algorithms.sparse import SparseMethod, masked
from gossip.effects import Node
from gossip.flat import Segment
from topologies import Schedule, Topology


@register("dgc")
@dataclass(frozen=True)
class DGC(SparseMethod):
    """Deep gradient compression: the largest values of each tensor, with momentum that survives the wait."""

    paper: ClassVar[str] = "Lin et al. 2018, arXiv 1712.01887"

    ratio: float = option(0.001, "share of each weight tensor that is sent per step, in (0, 1]")
    warmup_steps: int = option(2000, "steps in which the share falls from 25 % to ratio; paper: 4 epochs")
    momentum_correction: bool = option(True, "accumulate the velocity; false: the optimizer has the momentum")
    masking: bool = option(True, "momentum factor masking: forget the velocity of what was sent")
    clip: float | None = option(None, "clip the gradient's norm to this before it is accumulated")
    clip_scope: Literal["global", "tensor"] = option("global", "norm of the whole gradient, or per tensor")
    threshold: Literal["sampled", "exact"] = option("sampled", "find the largest values from 1 %, or exactly")
    values: Literal["fp32", "fp16"] = option("fp32", "how the values sent travel")
    indices: Literal["runs", "uint32"] = option("runs", "how places travel: 16-bit run lengths, or 32 bit")
    dense_1d: bool = option(True, "send tensors of one dimension whole")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps={self.warmup_steps}: give 0 (no warm-up) or more")
        if not (self.masking or self.momentum_correction):
            raise ValueError(
                "masking=false: without momentum correction there is no velocity to mask; leave it out"
            )
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: give a norm above 0, or leave it out")

    @property
    def one_bucket(self) -> bool:
        return self.clip is not None and self.clip_scope == "global"

    @property
    def refuses_edits(self) -> str:  # type: ignore[override]
        if not self.momentum_correction:
            return ""
        return (
            "it is a sum of velocities, and if that scales them, what is cut off is lost. To clip, take "
            "dgc:clip=NORM (the training script's --clip-norm does so); train without a GradScaler"
        )

    def ratio_at(self, t: int) -> float:
        """r_t."""
        stages = 0
        while 4.0 ** -(stages + 1) > self.ratio:
            stages += 1
        if stages == 0 or t > self.warmup_steps:
            return self.ratio
        return 4.0 ** -(1 + (t - 1) * stages // self.warmup_steps)

    def init(self, x: Tensor, node: Node) -> State:
        v = {"v": torch.zeros_like(x)}
        return {"u": torch.zeros_like(x), **v} if self.momentum_correction else v

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        v = state["v"]
        g = yield node.gradient()
        for at, h in alike(node.segments, node.adopted):
            if self.momentum_correction and h.weight_decay:
                g[at].add_(x[at], alpha=h.weight_decay)
        self._clip(g, node)
        for at, h in alike(node.segments, node.adopted):
            if not self.momentum_correction:
                v[at] += g[at]
            elif h.nesterov:
                u = state["u"][at].add_(g[at]).mul_(h.momentum)
                v[at] += u + g[at]
            else:
                v[at] += state["u"][at].mul_(h.momentum).add_(g[at])
        sent = yield from self.sparse_mean(g, v, node)
        if self.momentum_correction and self.masking:
            masked(state["u"], self.sparse(node.segments), sent)

    def _clip(self, g: Tensor, node: Node) -> None:
        if self.clip is None:
            return
        for part in g.split([s.size for s in node.segments]) if self.clip_scope == "tensor" else [g]:
            norm = torch.linalg.vector_norm(part)
            part.mul_((self.clip * node.size**0.5 / (norm + 1e-6)).clamp(max=1))

    def recurring(self) -> range:
        return range(self.warmup_steps + 1, self.warmup_steps + 2)

    def adopt(self, optimizer: Optimizer, parameters: Mapping[nn.Parameter, str]) -> Adoption:
        return MomentumAdoption(self.name, optimizer, parameters) if self.momentum_correction else Adoption()

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        if self.clip is None and self.clip_scope != "global":
            yield f"{self.name}: clip_scope={self.clip_scope} does nothing without clip=…"

    def notes(self, buckets: Sequence[Sequence[Segment]], size: int, compressor: Compressor) -> Iterator[str]:
        if self.ratio_at(1) > self.ratio:
            yield f"{self.name}: warm-up in steps 1 to {self.warmup_steps}, from 25 % down to {self.ratio:g}"
