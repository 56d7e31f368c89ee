"""What the sparse gradient methods share: weights send their largest values, 1-D tensors go dense."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from compressors import FP16, Compressor, Identity, LayerTopK, NonFiniteError, PaperSize, Shape
from compressors.base import all_finite
from gossip.algorithms import exchange
from gossip.algorithms.base import GradientMethod
from gossip.effects import Effect, Expect, Node

if TYPE_CHECKING:
    from gossip.flat import Segment

VALUES = {"fp32": Identity(), "fp16": FP16()}
PLACE_BYTES = {"runs": 2, "uint32": 4}


class SparseMethod(GradientMethod):
    """Sends C(v), the largest share `ratio` of every weight tensor of a vector v that the method keeps."""

    uses_compressor: ClassVar[bool] = False
    messages: ClassVar[str] = "sparse, in a format of its own"

    ratio: float
    threshold: Literal["sampled", "exact"]
    values: Literal["fp32", "fp16"] = "fp32"
    indices: Literal["runs", "uint32"] = "runs"
    dense_1d: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(
                f"ratio={self.ratio}: give a share of the values above 0, up to 1, such as 0.001"
            )

    def ratio_at(self, t: int) -> float:
        """The share that is sent in round t."""
        return self.ratio

    def sparse(self, segments: Sequence[Segment]) -> list[Segment]:
        """The tensors that go sparse: those of two dimensions and more, or all."""
        return [s for s in segments if len(s.shape) > 1 or not self.dense_1d]

    def codec_at(self, t: int, sparse: Sequence[Segment]) -> Compressor:
        """The codec of round t's message about these tensors."""
        codec = LayerTopK(self.ratio_at(t), self.threshold, VALUES[self.values], self.indices)
        return codec.for_segments([s.size for s in sparse])

    def expects(self, node: Node) -> tuple[Expect, ...]:
        if not (sparse := self.sparse(node.segments)):
            return ()
        codec, size = self.codec_at(node.t, sparse), sum(s.size for s in sparse)
        return tuple(Expect(j, codec=codec, size=size) for j in exchange.others(node))

    def means(self, node: Node) -> tuple[int, ...]:
        dense = node.n - sum(s.size for s in self.sparse(node.segments))
        return (dense,) if dense else ()

    def paper_size(self, shapes: Sequence[Shape], compressor: Compressor) -> PaperSize:
        """DGC's count: the share of the weights with a place each, and the 1-D tensors whole.

        Not in it: the header, escapes, and that every tensor sends at least one value.
        """
        pair = VALUES[self.values].max_bytes(1) + PLACE_BYTES[self.indices]
        sizes = [math.prod(shape) for shape in shapes]
        dense = sum(n for shape, n in zip(shapes, sizes, strict=True) if self.dense_1d and len(shape) < 2)
        law = f"{self.ratio:g} · weights · {pair} B" + (" + 4 B · values of 1-D tensors" * self.dense_1d)
        return PaperSize(self.ratio * (sum(sizes) - dense) * pair + 4 * dense, law)

    def sparse_mean(self, g: Tensor, v: Tensor, node: Node) -> Generator[Effect, Any, list[Tensor]]:
        """g ← the mean over nodes of what each sends of its v; v keeps the rest. Both float32 [n], in place.

        1-D tensors are sent as they are, and averaged exactly. Returns C(v) of each sparse tensor, 0 where
        nothing was sent. g is bitwise the same on all nodes.
        """
        sparse = self.sparse(node.segments)
        chosen = {s.name for s in sparse}
        dense = [s for s in node.segments if s.size and s.name not in chosen]
        mean = None
        if dense:
            rest = torch.cat([v[s.at] for s in dense])
            if not all_finite(rest):
                raise NonFiniteError("NaN or inf in a gradient that is sent dense")
            mean = node.mean(rest)
        own: list[Tensor] = []
        if sparse:
            codec, everyone = self.codec_at(node.t, sparse), exchange.others(node)
            sent = node.send(torch.cat([v[s.at] for s in sparse]), to=everyone, codec=codec)
            own = list(sent.split([s.size for s in sparse]))
            for s, c in zip(sparse, own, strict=True):
                v[s.at] -= c
            messages = yield node.receive(everyone)
            _put(g, sparse, exchange.total(sent, messages, node).div_(node.size))
        if mean is not None:
            _put(g, dense, (yield mean))
            for s in dense:
                v[s.at] = 0
        return own


def masked(u: Tensor, sparse: Sequence[Segment], sent: Sequence[Tensor]) -> None:
    """u ← 0 wherever something was sent, in place."""
    for s, c in zip(sparse, sent, strict=True):
        u[s.at].masked_fill_(c != 0, 0)


def _put(g: Tensor, segments: Sequence[Segment], values: Tensor) -> None:
    for s, part in zip(segments, values.split([s.size for s in segments]), strict=True):
        g[s.at] = part
