"""Gradient dropping (Aji & Heafield 2017, "Sparse Communication for Distributed Gradient Descent",
arXiv 1704.05021): what DGC is compared with.

On node i, per weight tensor, with the residual v_i = 0 at the start:

    v_i ← v_i + g_i
    C(v_i) = v_i where |v_i| is among the largest share r of its tensor, else 0
    v_i ← v_i − C(v_i);   g ← (1/n) Σ_j C(v_j)

Symbols: g, v: float32 [n_bucket]; ratio = r. No momentum correction, masking, clipping or warm-up: the user's
optimizer, momentum and weight decay included, acts on the sparse g. 1-D tensors are sent whole. Sent: as in
dgc, so both send the same bytes at the same ratio.
Law: sent + residual = sum of inputs, exactly.

Differences with the paper: the threshold is per tensor, as in DGC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossip.algorithms.base import State, Steps, option, register
from gossip.algorithms.sparse import SparseMethod
from gossip.effects import Node


@register("gradient-dropping")
@dataclass(frozen=True)
class GradientDropping(SparseMethod):
    """The largest values of each tensor with error feedback only: the comparator of DGC."""

    paper: ClassVar[str] = "Aji & Heafield 2017, arXiv 1704.05021"

    ratio: float = option(0.001, "share of each weight tensor that is sent per step, in (0, 1]")
    threshold: Literal["sampled", "exact"] = option("sampled", "find the largest values from 1 %, or exactly")

    def init(self, x: Tensor, node: Node) -> State:
        return {"v": torch.zeros_like(x)}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        g = yield node.gradient()
        state["v"] += g
        yield from self.sparse_mean(g, state["v"], node)
