"""What a host does between two exchanges: really computes, or leaves the core free for a fixed time.

`Paced` stands for an accelerator: a training step takes its time, but none of the CPU's. So eight hosts fit
on two cores, each as fast as if it were alone. Its parameters have the shapes of a real model, and its hooks
fire layer by layer, as the real model's do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import models
from experiments.data.augment import normalize
from experiments.data.synthetic import Synthetic

FORWARD = 1 / 3
"""Share of the forward pass in a step's time."""

GRADIENT = 1e-2
"""Standard deviation of the made-up gradients."""


@dataclass(frozen=True)
class Compute:
    """One step's computing on one host.

    Attributes:
        model: name, as in `experiments.models`.
        batch_size: images per host and step.
        seconds: of forward and backward, without the use of a core; None to compute really.
        slow: host -> factor by which it takes longer (stragglers).
    """

    model: str = "resnet20"
    batch_size: int = 32
    seconds: float | None = 0.135
    slow: tuple[tuple[int, float], ...] = ()

    def __str__(self) -> str:
        what = f"{self.model}, batch {self.batch_size} per host, "
        if self.seconds is None:
            what += "really computed (float32, one thread per host)"
        else:
            what += f"a fixed {1e3 * self.seconds:g} ms per step that leaves the core free"
        return what + "".join(f"; host {host} takes {factor:g} times as long" for host, factor in self.slow)

    def workload(self, rank: int) -> Workload:
        """What rank `rank` is to run."""
        factor = dict(self.slow).get(rank, 1.0)
        return Real(self, rank, factor) if self.seconds is None else Fixed(self, rank, factor * self.seconds)


class Workload:
    """A model, and a training step on it without the optimizer. `forward_backward` takes the model as it is
    wrapped by now (DDP)."""

    model: nn.Module

    def forward_backward(self, model: nn.Module) -> float:
        """One forward and backward pass; the loss."""
        raise NotImplementedError


class Real(Workload):
    """The model on synthetic images; a slow host waits before it begins, in proportion to its last step."""

    def __init__(self, compute: Compute, rank: int, factor: float, amp: bool = False) -> None:
        torch.manual_seed(0)
        self.model = models.build(compute.model)
        self._factor, self._last, self._amp = factor, 0.0, amp
        self._batch = _batches(compute.batch_size, rank)

    def forward_backward(self, model: nn.Module) -> float:
        time.sleep((self._factor - 1) * self._last)
        start = time.perf_counter()
        x, y = self._batch()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._amp):
            loss = cross_entropy(model(x), y)
        loss.backward()
        self._last = time.perf_counter() - start
        return loss.item()


class Fixed(Workload):
    """Parameters like the model's, gradients made up beforehand."""

    def __init__(self, compute: Compute, rank: int, seconds: float) -> None:
        self.model = Paced(models.build(compute.model), seconds, rank)

    def forward_backward(self, model: nn.Module) -> float:
        loss: Tensor = model(torch.zeros(1))
        loss.backward()
        return loss.item()


def _batches(batch_size: int, rank: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Random batches of the synthetic training images, others on every rank."""
    data = Synthetic().load("")
    generator = torch.Generator().manual_seed(1000 + rank)

    def draw() -> tuple[Tensor, Tensor]:
        index = torch.randint(len(data.train_y), (batch_size,), generator=generator)
        return normalize(data.train_x[index], data.mean, data.std), data.train_y[index]

    return draw


class Clock:
    """When the layers of a pass end: evenly spread over its time, counted from its beginning.

    Because the ends are set beforehand, what the hooks do between layers takes no extra time, as on an
    accelerator that computes by itself.
    """

    def __init__(self, seconds: float, layers: int) -> None:
        self._seconds, self._layers = seconds, layers
        self._began = 0.0

    def end_layer(self, k: int) -> None:
        """Sleep until the k-th layer of this pass (from 0) is done."""
        now = time.perf_counter()
        if k == 0:
            self._began = now
        time.sleep(max(0.0, self._began + self._seconds * (k + 1) / self._layers - now))


class Paced(nn.Module):
    """A model of the same parameters as `like` that takes `seconds` per forward and backward.

    Takes float32 [1] and gives a loss, float32 []. The gradients are fixed normal numbers, others on every
    rank.
    """

    def __init__(self, like: nn.Module, seconds: float, rank: int) -> None:
        super().__init__()
        own = [list(module.parameters(recurse=False)) for module in like.modules()]
        groups = [group for group in own if group]
        forward = Clock(FORWARD * seconds, len(groups))
        backward = Clock((1 - FORWARD) * seconds, len(groups))
        generator = torch.Generator().manual_seed(rank)
        self.layers = nn.ModuleList(
            PacedLayer(group, k, len(groups), forward, backward, generator) for k, group in enumerate(groups)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


class PacedLayer(nn.Module):
    """One layer: the k-th of `layers` forward, and backward the k-th from the end."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        k: int,
        layers: int,
        forward: Clock,
        backward: Clock,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)
        self._gradients = [GRADIENT * torch.randn(p.shape, generator=generator) for p in parameters]
        self._ends: tuple[Callable[[], None], ...] = (
            lambda: forward.end_layer(k),
            lambda: backward.end_layer(layers - 1 - k),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Pace.apply(x, self._ends, self._gradients, *self.weights)
        return out


class _Pace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ends: Any, gradients: Any, *weights: Tensor) -> Tensor:
        ctx.end, ctx.gradients = ends[1], gradients
        ends[0]()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        ctx.end()
        return (grad[0], None, None, *ctx.gradients)
