"""PowerSGD (Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", arXiv 1905.13727, Alg. 1 and 2).

Per weight tensor, seen as a matrix [rows, rest], on node i, with the error E_i = 0 and the same Gaussian Q on
all nodes at the start:

    M_i = G_i + E_i
    P ← orthonormal basis of (1/n) Σ_j M_j Q        [rows, r]
    Q ← (1/n) Σ_j M_jᵀ P                            [rest, r], kept for the next step (warm start)
    G ← P Qᵀ;   E_i ← M_i − G

Symbols: g, e: float32 [n_bucket]; q: all Q of the bucket, flat. Tensors of one dimension, and those whose P
and Q would be larger than they, are averaged exactly. Sent, in 32 bit: the mean of all P (and of what is
dense), then of all Q.
Laws: G is that of one node with the mean gradient, since the error's mean needs only the mean of M; it equals
torch's powerSGD_hook with the same Q and min_compression_rate=1, to rounding.

Differences with the paper: a column of Q that has become 0 (a tensor without gradient) starts anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from compressors import Compressor, NonFiniteError, PaperSize, Shape
from compressors.base import all_finite
from gossip.algorithms.base import GradientMethod, State, Steps, option, register
from gossip.effects import Node, message_key
from gossip.flat import Segment


@dataclass(frozen=True)
class Matrix:
    """A tensor that is sent as P Qᵀ."""

    segment: Segment
    rows: int
    columns: int
    rank: int

    def of(self, vector: Tensor) -> Tensor:
        """Its place in a bucket's vector, [rows, columns]."""
        start = self.segment.offset
        return vector[start : start + self.segment.size].view(self.rows, self.columns)


@register("powersgd")
@dataclass(frozen=True)
class PowerSGD(GradientMethod):
    """Low-rank gradients by one step of power iteration, with error feedback."""

    paper: ClassVar[str] = "Vogels et al. 2019, arXiv 1905.13727"
    uses_compressor: ClassVar[bool] = False
    sends_messages: ClassVar[bool] = False

    rank: int = option(2, "columns of P and Q")

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank={self.rank}: give 1 or more")

    def matrices(self, segments: Sequence[Segment]) -> list[Matrix]:
        """The tensors that are worth it: r (rows + columns) < rows · columns."""
        found = []
        for s in segments:
            if len(s.shape) > 1 and s.size:
                rows, columns = s.shape[0], s.size // s.shape[0]
                rank = min(rows, columns, self.rank)
                if rank * (rows + columns) < s.size:
                    found.append(Matrix(s, rows, columns, rank))
        return found

    def init(self, x: Tensor, node: Node) -> State:
        start = [
            _gaussian(m.columns * m.rank, message_key(node.seed, zlib.crc32(m.segment.name.encode())))
            for m in self.matrices(node.segments)
        ]
        q = torch.cat([*start, torch.empty(0, dtype=torch.float32)]).to(x.device)
        return {"e": torch.zeros_like(x), "q": q, "start": q.clone()}

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        e, q = state["e"], state["q"]
        matrices = self.matrices(node.segments)
        low = {m.segment for m in matrices}
        dense = [s.at for s in node.segments if s not in low]
        sizes = [m.columns * m.rank for m in matrices]

        g = yield node.gradient()
        g += e
        q.copy_(torch.where(_alive(q, matrices, sizes), q, state["start"]))
        P = [
            product(m.of(g), Q.view(m.columns, m.rank)) for m, Q in zip(matrices, q.split(sizes), strict=True)
        ]
        parts = [*(p.reshape(-1) for p in P), *(g[at] for at in dense)]
        message = torch.cat(parts)
        if not all_finite(message):
            raise NonFiniteError("NaN or inf in a gradient")
        means = (yield node.mean(message)).split([part.numel() for part in parts])
        P = [torch.linalg.qr(p.view(m.rows, m.rank)).Q for m, p in zip(matrices, means, strict=False)]
        if matrices:
            Q = torch.cat([product(m.of(g).mT, p).reshape(-1) for m, p in zip(matrices, P, strict=True)])
            q.copy_((yield node.mean(Q)))
        for m, p, Q in zip(matrices, P, q.split(sizes), strict=True):
            G = product(p, Q.view(m.columns, m.rank).mT)
            m.of(e).copy_(m.of(g) - G)
            m.of(g).copy_(G)
        for at, mean in zip(dense, means[len(matrices) :], strict=True):
            g[at] = mean

    def means(self, node: Node) -> tuple[int, ...]:
        return self._lengths(node.segments)

    def paper_size(self, shapes: Sequence[Shape], compressor: Compressor) -> PaperSize:
        sent = self._lengths([Segment("", 0, shape) for shape in shapes])
        return PaperSize(4 * sum(sent), f"4 B · ({self.rank} · Σ (rows + columns) + values of dense tensors)")

    def _lengths(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Values in the two means of a step: all P and the dense tensors, all Q."""
        matrices = self.matrices(segments)
        dense = sum(s.size for s in segments) - sum(m.segment.size for m in matrices)
        first = sum(m.rows * m.rank for m in matrices) + dense
        return (first, sum(m.columns * m.rank for m in matrices)) if matrices else (first,)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32: a step may run inside of the user's autocast, which would take it in 16 bit."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _gaussian(n: int, key: int) -> Tensor:
    """float32 [n] on the CPU, N(0, 1), from the key alone."""
    return torch.randn(n, generator=torch.Generator().manual_seed(key >> 1), dtype=torch.float32)


def _alive(q: Tensor, matrices: Sequence[Matrix], sizes: Sequence[int]) -> Tensor:
    """bool like q: whether the column that each value of q belongs to is not all 0."""
    alive = [
        (Q.view(m.columns, m.rank) != 0).any(0, keepdim=True).expand(m.columns, m.rank).reshape(-1)
        for m, Q in zip(matrices, q.split(sizes), strict=True)
    ]
    return torch.cat([*alive, torch.empty(0, dtype=torch.bool, device=q.device)])
