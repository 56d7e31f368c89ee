"""What the sparse gradient methods share: weights send their largest values, 1-D tensors go dense."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from compressors import FP16, Compressor, Identity, LayerTopK, NonFiniteError, PaperSize, Shape
from gossip.algorithms import exchange
from gossip.effects import Effect, Expect, Node

if TYPE_CHECKING:
    from gossip.flat import Segment

VALUES = {"fp32": Identity(), "fp16": FP16()}
PLACE_BYTES = {"runs": 2, "uint32": 4}


def check_ratio(ratio: float) -> None:
    """Raise ValueError unless ratio is in (0, 1]."""
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio}: give a share of the values above 0, up to 1, such as 0.001")


def codec_for(
    segments: Sequence[Segment], ratio: float, threshold: str, values: str, indices: str
) -> Compressor:
    """The message of these tensors."""
    return LayerTopK(ratio, threshold, VALUES[values], indices).for_segments([s.size for s in segments])


def weights(segments: Sequence[Segment], dense_1d: bool) -> list[Segment]:
    """The tensors that go sparse: those of two dimensions and more, or all."""
    return [s for s in segments if len(s.shape) > 1 or not dense_1d]


def means(segments: Sequence[Segment], sparse: Sequence[Segment]) -> tuple[int, ...]:
    """The length of what `sparse_mean` averages exactly, if anything."""
    dense = sum(s.size for s in segments) - sum(s.size for s in sparse)
    return (dense,) if dense else ()


def paper_size(
    shapes: Sequence[Shape],
    ratio: float,
    dense_1d: bool = True,
    values: str = "fp32",
    indices: str = "runs",
) -> PaperSize:
    """DGC's count: the share of the weights with a place each, and the 1-D tensors whole.

    Not in it: the header, escapes, and that every tensor sends at least one value.
    """
    pair = VALUES[values].max_bytes(1) + PLACE_BYTES[indices]
    sizes = [math.prod(shape) for shape in shapes]
    dense = sum(size for shape, size in zip(shapes, sizes, strict=True) if dense_1d and len(shape) < 2)
    law = f"{ratio:g} · weights · {pair} B" + (" + 4 B · values of 1-D tensors" if dense_1d else "")
    return PaperSize(ratio * (sum(sizes) - dense) * pair + 4 * dense, law)


def expects(node: Node, sparse: Sequence[Segment], codec: Compressor) -> Iterator[Expect]:
    """The messages of `sparse_mean`."""
    if sparse:
        size = sum(s.size for s in sparse)
        yield from (Expect(j, codec=codec, size=size) for j in exchange.others(node))


def sparse_mean(
    g: Tensor, v: Tensor, node: Node, sparse: Sequence[Segment], codec: Compressor
) -> Generator[Effect, Any, list[Tensor]]:
    """g ← the mean over nodes of what each sends of its v; v keeps the rest.

    Args:
        g, v: float32 [n], changed in place.
        sparse: the tensors of which C(v) is sent, in one message that `codec` makes; all others are sent
            as they are, and averaged exactly.

    Returns C(v) of each tensor in `sparse`, 0 where nothing was sent. g is bitwise the same on all nodes.
    """
    chosen = {s.name for s in sparse}
    dense = [s for s in node.segments if s.size and s.name not in chosen]
    mean = None
    if dense:
        rest = torch.cat([v[s.at] for s in dense])
        if not bool(torch.isfinite(rest.sum())):
            raise NonFiniteError("NaN or inf in a gradient that is sent dense")
        mean = node.mean(rest)
    own: list[Tensor] = []
    if sparse:
        sent = node.send(torch.cat([v[s.at] for s in sparse]), to=exchange.others(node), codec=codec)
        own = list(sent.split([s.size for s in sparse]))
        for s, c in zip(sparse, own, strict=True):
            v[s.at] -= c
        messages = yield node.receive(exchange.others(node))
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
