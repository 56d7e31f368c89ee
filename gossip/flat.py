"""A model's parameters and gradients as views of flat vectors, cut into buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor, nn

from gossip.errors import UsageError

Pieces = Callable[[int], int]
"""How many slices a layer of so many values is cut into."""


@dataclass(frozen=True)
class Segment:
    """Where a parameter, or the part of it that is in this bucket, lies inside the bucket.

    `shape` is that of the values as they lie there: of a parameter whose dimensions are in another order in
    memory (channels_last, a transposed matrix), in that order.
    """

    name: str
    offset: int
    shape: tuple[int, ...]

    @cached_property  # methods that go tensor by tensor ask for it hundreds of times a step
    def size(self) -> int:
        """Number of values."""
        return torch.Size(self.shape).numel()

    @property
    def at(self) -> slice:
        """Its place in a vector of the bucket."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Bucket:
    """A contiguous slice of the flat vector: whole parameters, or a slice of one layer.

    Attributes:
        parameters: of each segment.
    """

    start: int
    segments: tuple[Segment, ...]
    parameters: tuple[nn.Parameter, ...]
    of_a_layer: bool = False

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def of(self, vector: Tensor) -> Tensor:
        """This bucket's slice of a flat vector."""
        return vector[self.start : self.start + self.size]

    def label(self, number: int) -> str:
        """How errors and traces call it: ``bucket 3``, or ``slice 3 (fc.weight[0:50000])``."""
        if not self.of_a_layer:
            return f"bucket {number}"
        return f"slice {number} ({', '.join(segment.name for segment in self.segments)})"


def even_parts(d: int, n: int) -> list[slice]:
    """0 … d−1 cut into n slices, in order; their lengths differ by one at most and may be 0."""
    return [slice(d * k // n, d * (k + 1) // n) for k in range(n)]


def _dense(p: Tensor) -> bool:
    """True if the strides of `p` are a permutation of a contiguous tensor's (e.g. channels_last)."""
    expected = 1
    for stride, size in sorted(zip(p.stride(), p.size(), strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _shape_in_memory(p: Tensor) -> tuple[int, ...]:
    """The shape of `p` with its dimensions from the outermost in memory to the innermost."""
    if not _dense(p):
        return tuple(p.shape)  # the flat vector has it in the usual order
    dimensions = zip(p.stride(), p.size(), strict=True)
    return tuple(size for _, size in sorted(dimensions, key=lambda dimension: -dimension[0]))


class FlatModel:
    """The trainable parameters of a model, re-pointed at one float32 vector, in backward order.

    Backward order (the reverse of registration) makes the first bucket the first that backward fills. Strides
    are kept, so channels_last survives. Tied parameters appear once, frozen ones not at all.

    Args:
        model: its trainable parameters must be float32 and on one device.
        bucket_bytes: a bucket is closed when it has reached its size: of the first, the second and so on, the
            last for all that follow. None makes one bucket of everything.
        pieces: cuts every layer (the parameters that one module holds itself) into so many even slices, and
            makes each a bucket, in place of `bucket_bytes`.
    """

    def __init__(
        self, model: nn.Module, bucket_bytes: Sequence[int] | None = None, pieces: Pieces | None = None
    ) -> None:
        self.names: dict[nn.Parameter, str] = {
            p: name for name, p in reversed(list(model.named_parameters())) if p.requires_grad
        }
        self.frozen: dict[str, nn.Parameter] = {
            name: p for name, p in model.named_parameters() if not p.requires_grad
        }
        self._homes = [
            (module._parameters, key, p)
            for module in model.modules()
            for key, p in module._parameters.items()
            if p is not None and p in self.names
        ]
        self._check(model)
        device = next(iter(self.names)).device
        self.size = sum(p.numel() for p in self.names)
        self.vector = torch.empty(self.size, dtype=torch.float32, device=device)
        self.offset: dict[nn.Parameter, int] = {}
        position = 0
        for p in self.names:
            self.offset[p] = position
            view = self.view(self.vector, p)
            view.copy_(p.data)
            p.data = view
            position += p.numel()
        self.buckets = tuple(self._cut(bucket_bytes) if pieces is None else self._slices(pieces))

    def _check(self, model: nn.Module) -> None:
        if not self.names:
            raise UsageError(
                f"{type(model).__name__} has no trainable parameters: nothing to exchange. "
                "Call join before freezing, or train without it."
            )
        for p, name in self.names.items():
            if p.dtype != torch.float32:
                raise UsageError(
                    f"parameter {name!r} is {p.dtype}, and replicas are float32. Keep the model in float32 "
                    "(model.float()) and compute in 16 bit with torch.autocast(device, dtype=torch.bfloat16)."
                )
            if isinstance(p, nn.UninitializedParameter):
                raise UsageError(f"parameter {name!r} is lazy: run one forward pass before join.")
        devices = {str(p.device) for p in self.names}
        if len(devices) > 1:
            raise UsageError(
                f"the parameters are on {sorted(devices)}: move the model to one device before join."
            )

    def view(self, vector: Tensor, p: Tensor) -> Tensor:
        """The place of parameter `p` in a flat vector, with the shape and strides of `p`."""
        stride = p.stride() if _dense(p) else torch.empty(p.shape, device="meta").stride()
        return vector.as_strided(p.size(), stride, self.offset[p])  # type: ignore[index]

    def _cut(self, bucket_bytes: Sequence[int] | None) -> Iterable[Bucket]:
        sizes = list(bucket_bytes or ())
        start, segments, parameters = 0, list[Segment](), list[nn.Parameter]()
        for p, name in self.names.items():
            segments.append(Segment(name, self.offset[p] - start, _shape_in_memory(p)))
            parameters.append(p)
            end = self.offset[p] + p.numel()
            if sizes and 4 * (end - start) >= sizes[0]:
                sizes = sizes[1:] or sizes
                yield Bucket(start, tuple(segments), tuple(parameters))
                start, segments, parameters = end, [], []
        if parameters:
            yield Bucket(start, tuple(segments), tuple(parameters))

    def _slices(self, pieces: Pieces) -> Iterable[Bucket]:
        for _, layer in groupby(self.names, key=lambda p: self.names[p].rpartition(".")[0]):
            parameters = list(layer)
            start = self.offset[parameters[0]]
            size = sum(p.numel() for p in parameters)
            for at in even_parts(size, pieces(size)):
                yield self._slice(start + at.start, start + at.stop, parameters)

    def _slice(self, start: int, stop: int, parameters: Iterable[nn.Parameter]) -> Bucket:
        """The values from `start` to `stop` of the flat vector, which belong to these parameters."""
        segments, inside = list[Segment](), list[nn.Parameter]()
        for p in parameters:
            own = self.offset[p]
            first, last = max(start, own), min(stop, own + p.numel())
            if first < last:
                whole = last - first == p.numel()
                name = self.names[p] if whole else f"{self.names[p]}[{first - own}:{last - own}]"
                shape = _shape_in_memory(p) if whole else (last - first,)
                segments.append(Segment(name, first - start, shape))
                inside.append(p)
        return Bucket(start, tuple(segments), tuple(inside), of_a_layer=True)

    def signature(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """(name, shape, strides) of every parameter, in flat order."""
        return [(name, tuple(p.shape), tuple(p.stride())) for p, name in self.names.items()]

    def check_attached(self) -> None:
        """Raise UsageError if some parameter no longer lives in the flat vector."""
        start = self.vector.data_ptr()
        for home, key, p in self._homes:
            if home.get(key) is not p or (p.numel() and p.data_ptr() != start + 4 * self.offset[p]):
                raise UsageError(
                    f"parameter {self.names[p]!r} was moved after join (by .to(...), .half(), .cuda() or "
                    "load_state_dict(assign=True)), so neighbours no longer see it. Do that before join."
                )

    # -- gradients ---------------------------------------------------------------------------------

    @cached_property  # parameter methods need none
    def gradient(self) -> Tensor:
        """The flat gradient, float32 [size]."""
        return torch.zeros_like(self.vector)

    @cached_property
    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """The place of each parameter's gradient in the flat gradient."""
        return {p: self.view(self.gradient, p) for p in self.names}

    def collect_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make their ``p.grad`` the views of the flat gradient again; no gradient counts as zero."""
        views, gradients = list[Tensor](), list[Tensor]()
        for p in parameters:
            view = self.gradients[p]
            if p.grad is None:
                view.zero_()
            elif p.grad.layout is not torch.strided:
                raise UsageError(
                    f"the gradient of {self.names[p]!r} is sparse, and methods that exchange gradients need "
                    "dense ones: make the embedding with sparse=False, and use a dense optimizer."
                )
            elif p.grad is not view:
                views.append(view)
                gradients.append(p.grad)
            p.grad = view
        if views:
            torch._foreach_copy_(views, gradients)
