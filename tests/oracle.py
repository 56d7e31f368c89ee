"""Every method as a dense float64 matrix simulation, written from the papers, not from the production code.

Row i of X [n, d] is node i's parameters. Each method is a generator of X after rounds t = 1, 2, …:

    W(t) -> [n, n]: the mixing matrix of round t
    u(X, average=False) -> [n, d]: the local optimizers' steps from X (`MomentumSGD`), `average` makes them
        follow the mean gradient
    C(V, t) -> [n, d]: what the receivers decode of the n messages V of round t
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codec = Callable[[Array, int], Array]
Mixing = Callable[[int], Array]


class MomentumSGD:
    """torch.optim.SGD on n nodes: `every` local steps from X, by grad(X, k) -> [n, d] in step k = 0, 1, …"""

    def __init__(
        self, grad: Callable[[Array, int], Array], lr: float, momentum: float, decay: float, every: int = 1
    ) -> None:
        self.grad, self.lr, self.momentum, self.decay, self.every = grad, lr, momentum, decay, every
        self.m: Array | None = None
        self.k = 0

    def __call__(self, X: Array, average: bool = False) -> Array:
        Y = X.copy()
        for _ in range(self.every):
            g = self.grad(Y, self.k)
            if average:
                g = np.broadcast_to(g.mean(axis=0), g.shape)
            g = g + self.decay * Y
            self.m = g if self.m is None else self.momentum * self.m + g
            Y = Y - self.lr * self.m
            self.k += 1
        return Y - X


def identity(V: Array, t: int) -> Array:
    """C(V) = V."""
    return V


def local(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    while True:
        X = X + u(X)
        yield X


def allreduce(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    while True:
        X = X + u(X, average=True)
        yield X


def dpsgd(X: Array, W: Mixing, u: Any, C: Codec, order: str = "mix") -> Iterator[Array]:
    for t in count(1):
        X = W(t) @ X + u(X) if order == "mix" else W(t) @ (X + u(X))
        yield X


def naive(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    for t in count(1):
        own = np.diag(np.diag(W(t)))
        X = own @ X + (W(t) - own) @ C(X, t) + u(X)
        yield X


def dcd(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    for t in count(1):
        X = X + C(W(t) @ X + u(X) - X, t)
        yield X


def ecd(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    E = X.copy()
    for t in count(1):
        new = W(t) @ E + u(X)
        E = (1 - 2 / t) * E + 2 / t * C((1 - t / 2) * X + t / 2 * new, t)
        X = new
        yield X


def choco(X: Array, W: Mixing, u: Any, C: Codec, gamma: float = 1.0) -> Iterator[Array]:
    H = np.zeros_like(X)
    for t in count(1):
        H = H + C(X - H, t)
        X = X + u(X) + gamma * (W(t) @ H - H)
        yield X


def deepsqueeze(X: Array, W: Mixing, u: Any, C: Codec, gamma: float = 1.0) -> Iterator[Array]:
    E = np.zeros_like(X)
    for t in count(1):
        Y = X + u(X)
        M = C(Y + E, t)
        E = Y + E - M
        X = Y + gamma * (W(t) @ M - M)
        yield X


METHODS: dict[str, Callable[..., Iterator[Array]]] = {
    f.__name__: f for f in (local, allreduce, dpsgd, naive, dcd, ecd, choco, deepsqueeze)
}
