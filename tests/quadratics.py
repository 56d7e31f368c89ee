"""The problem on which methods are compared with the oracle: quadratics that differ by node and by step.

Node i's loss in step k is ½ Σ a_i x² − b_i(k)·x on x [D], cut into two parameters. Vectors are in the flat
model's order: the later parameter first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gossip
from compressors import Compressor
from gossip.effects import message_key
from gossip.session import Session
from gossip.spec import make_codec
from tests import oracle

SHAPES = ((5, 6), (7,))
D = 37
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-2


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(SHAPES[0]))
        self.v = nn.Parameter(torch.randn(SHAPES[1]))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = torch.cat([self.v, self.w.reshape(-1)])
        return 0.5 * (a * x).dot(x) - b.dot(x)

    def flat(self) -> Tensor:
        return torch.cat([self.v, self.w.reshape(-1)]).detach()


def curvature(n: int) -> Tensor:
    """a, float32 [n, D]."""
    return torch.rand(n, D, generator=torch.Generator().manual_seed(1)) + 0.5


def slope(n: int, k: int) -> Tensor:
    """b(k), float32 [n, D]: what the nodes want in the long run, and noise."""
    wanted = torch.randn(n, D, generator=torch.Generator().manual_seed(2))
    return wanted + 0.5 * torch.randn(n, D, generator=torch.Generator().manual_seed(1000 + k))


@dataclass(frozen=True)
class Recorder(Compressor):
    """A codec that keeps what it encoded and what that decodes to: ``log[key] = (v, C(v))``."""

    inner: Compressor
    log: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.inner.unbiased

    @property
    def relative_noise(self) -> bool:  # type: ignore[override]
        return self.inner.relative_noise

    def max_bytes(self, n: int) -> int:
        return self.inner.max_bytes(n)

    def encode(self, x: Tensor, key: int) -> Tensor:
        payload = self.inner.encode(x, key)
        if x.numel() <= D:  # a message, and not a measurement of the codec
            self.log[key] = x.clone(), self.inner.decode(payload, x.numel())
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        return self.inner.decode(payload, n)

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        self.inner.decode_add(payload, out, alpha)

    def for_segments(self, sizes: Sequence[int]) -> Recorder:
        return Recorder(self.inner.for_segments(sizes), self.log)

    def contraction_gamma(self) -> float:
        return self.inner.contraction_gamma()

    def __str__(self) -> str:
        return str(self.inner)


def assert_close(x: Any, expected: Any, tolerance: float = 1e-5, scale: float = 0.0) -> None:
    """max |x − expected| ≤ tolerance · max |expected|, or of `scale` if that is larger."""
    error = np.abs(np.asarray(x, dtype=np.float64) - expected).max()
    assert error <= tolerance * max(scale, np.abs(expected).max()), error


@dataclass(frozen=True)
class Run:
    """X [steps + 1, n, D] at the start and after every step; by rank: what `watch` gave, statistics."""

    X: NDArray[np.float32]
    watched: list[list[Any]]
    stats: list[dict[str, Any]]
    log: dict[int, tuple[Tensor, Tensor]]

    @property
    def last(self) -> NDArray[np.float32]:
        return self.X[-1]

    def recorded(self, scale: float = 1.0) -> oracle.Codec:
        """For the oracle: `scale` times what production decoded, once the input of that agrees with V.

        A message that is a difference of parameters carries their rounding, so x sets the tolerance.
        """
        size = float(np.abs(self.X).max())

        def C(V: oracle.Array, t: int) -> oracle.Array:
            v, c = zip(*(self.log[message_key(0, i, t, 0, 0)] for i in range(len(V))), strict=True)
            assert_close(np.stack(v), V, scale=size)
            return scale * np.stack(c).astype(np.float64)

        return C


def loop(
    session: Session, model: Quadratic, optimizer: torch.optim.Optimizer, steps: Sequence[int]
) -> list[Tensor]:
    """The user's training loop over the given step numbers; x after each."""
    a, xs = curvature(session.size)[session.rank], []
    for k in steps:
        optimizer.zero_grad()
        model(a, slope(session.size, k)[session.rank]).backward()
        optimizer.step()
        if session.algorithm.posting is not None:
            session.wait()  # the next forward would apply the rest of the update, module by module
        xs.append(model.flat())
    return xs


def start(
    lr: float = LR, momentum: float = MOMENTUM, decay: float = DECAY
) -> tuple[Quadratic, torch.optim.SGD]:
    """A model, different on every rank, and its optimizer."""
    torch.manual_seed(gossip.world().rank)
    model = Quadratic()
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)


def simulate(
    algorithm: Any,
    n: int,
    codec: str | Compressor = "identity",
    steps: int = 24,
    watch: Callable[[Session, Quadratic], Any] | None = None,
    **options: Any,
) -> Run:
    """Train on n virtual nodes; `watch` is called on every node after every step."""
    recorder = Recorder(make_codec(codec))

    def node() -> tuple[list[Tensor], list[Any], dict[str, Any]]:
        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm=algorithm, compressor=recorder, **options)
        xs, watched = [model.flat()], []
        for k in range(steps):
            xs += loop(session, model, optimizer, [k])
            if watch is not None:
                watched.append(watch(session, model))
        stats = session.stats.take()
        session.finish()
        return xs, watched, stats

    xs, watched, stats = zip(*gossip.launch(node, n), strict=True)
    X = np.stack([torch.stack(x).numpy() for x in xs], axis=1)
    return Run(X, list(watched), list(stats), recorder.log)


def updates(n: int, every: int = 1) -> oracle.MomentumSGD:
    """The oracle's optimizer on this problem."""
    a = curvature(n).double().numpy()
    return oracle.MomentumSGD(lambda X, k: a * X - slope(n, k).double().numpy(), LR, MOMENTUM, DECAY, every)
