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


def plump(X: Array, W: Mixing, u: Any, C: Codec) -> Iterator[Array]:
    while True:
        X = np.broadcast_to(X[0] + u(X).mean(axis=0), X.shape)
        yield X


def exact(v: Array, t: int, i: int, m: int) -> Array:
    """C(v) = v."""
    return v


def slim(
    X: Array,
    W: Mixing,
    u: Any,
    C: Callable[[Array, int, int, int], Array] = exact,
    *,
    draw: Callable[[int, int, int, int, int], Any],
    alpha: float,
    beta: float,
    q: int,
    residual: str = "drop",
    eta: str = "mean",
    c: float = 1.0,
    scale: float = 1.0,
) -> Iterator[Array]:
    """The sharded parameter server as one.

    C(v, t, i, m): what is decoded of v, message m of node i in round t (pushes, then answers, each by rank).
    draw(t, i, k, size, count): which of the `size` values outside the core of owner k node i explores.
    """
    n, d = X.shape
    parts = [np.arange(d * k // n, d * (k + 1) // n) for k in range(n)]

    def largest(S: Array) -> list[Any]:
        return [np.sort(p[np.argsort(-S[p], kind="stable")[: round(beta * p.size)]]) for p in parts]

    def over_mean(v: Array) -> Array:
        return np.concatenate([np.abs(v[p]) / np.abs(v[p]).mean() for p in parts])

    w, E = X[0], np.zeros_like(X)
    core = largest(np.abs(w))
    for t in count(1):
        T: list[list[Any]] = []  # T[i][k]
        for i in range(n):
            T.append([])
            for k, part in enumerate(parts):
                outside = np.setdiff1d(part, core[k])
                more = max(1, round(alpha * part.size)) - core[k].size
                T[i].append(np.concatenate([core[k], outside[draw(t, i, k, outside.size, more)]]))
        pushed = [parts] * n if t % q == 0 else T
        Y = X + u(X)
        V = Y - X + E
        M, pushers = np.zeros_like(X), np.zeros(d)
        for i in range(n):
            for k in range(n):
                at = pushed[i][k]
                M[i, at] = V[i, at] if i == k else scale * C(V[i, at], t, i, k - (k > i))
                pushers[at] += 1
        E = V - M if residual == "keep" else E
        g = M.sum(axis=0) / (n if eta == "mean" else np.maximum(pushers, 1))
        w, X = w + g, Y
        for k in range(n):
            for i in range(n):
                at = T[i][k]
                X[i, at] = w[at] if i == k else C(w[at], t, k, n - 1 + i - (i > k))
        yield X.copy()
        if t % q == 0:
            core = largest(over_mean(w) + c * over_mean(g))


METHODS: dict[str, Callable[..., Iterator[Array]]] = {
    f.__name__: f for f in (local, allreduce, dpsgd, naive, dcd, ecd, choco, deepsqueeze, plump, slim)
}
