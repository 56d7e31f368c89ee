"""The gradient methods as float64 simulations, written from the papers, not from the production code.

All nodes hold the same x [D]; G [n, D] are their gradients. A method is a generator that is sent G and yields
what the optimizer applies, float64 [D].
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Method = Generator[Array, Array, None]
Codec = Callable[[Array, int], Array]


def mean(n: int) -> Method:
    applied = np.zeros(0)
    while True:
        G = yield applied
        applied = G.mean(axis=0)


def error_feedback(n: int, d: int, C: Codec, c: float = 1.0, ef: bool = True) -> Method:
    """C(P [n, d], t) -> [n, d], every row by itself."""
    E, applied, t = np.zeros((n, d)), np.zeros(0), 0
    while True:
        G = yield applied
        t += 1
        P = G + E
        M = c * C(P, t)
        E = P - M if ef else E
        applied = M.mean(axis=0)


def scattered(n: int, d: int, C: Callable[[Array], Array], ef: bool = True) -> Method:
    """Every owner k averages its part, [d k/n, d (k + 1)/n), of what the others send, and compresses that."""
    E, applied = np.zeros((n, d)), np.zeros(0)
    while True:
        G = yield applied
        P, applied = G + E, np.empty(d)
        for k in range(n):
            part = slice(d * k // n, d * (k + 1) // n)
            M = np.stack([P[i, part] if i == k else C(P[i, part]) for i in range(n)])
            applied[part] = C(M.mean(axis=0))
            if ef:
                E[:, part] = P[:, part] - M
                E[k, part] = n * (M.mean(axis=0) - applied[part])


def sign(block: int) -> Callable[[Array], Array]:
    """sign(v) · mean|v| in each block of the last axis."""

    def C(V: Array) -> Array:
        out = np.empty_like(V)
        for start in range(0, V.shape[-1], block):
            v = V[..., start : start + block]
            out[..., start : start + block] = np.where(v >= 0, 1, -1) * np.abs(v).mean(axis=-1, keepdims=True)
        return out

    return C


def largest(v: Array, ratio: float) -> NDArray[np.intp]:
    """Where the round(ratio d) ≥ 1 largest |v| are."""
    k = max(1, round(ratio * v.size))
    return np.argsort(-np.abs(v), kind="stable")[:k]


def dgc(
    n: int,
    d: int,
    x: Callable[[], Array],
    ratio_at: Callable[[int], float],
    weights: Sequence[slice],
    tensors: Sequence[slice],
    momentum: float = 0.0,
    nesterov: bool = False,
    decay: float = 0.0,
    masking: bool = True,
    clip: float | None = None,
    scope: str = "global",
) -> Method:
    """The paper's form: gradients over n, and the sum over nodes. x() is the current x, for its decay."""
    U, V, applied, t = np.zeros((n, d)), np.zeros((n, d)), np.zeros(0), 0
    while True:
        G = (yield applied) / n
        G = G + decay * x() / n
        t += 1
        for i in range(n):
            for part in [slice(0, d)] if scope == "global" else tensors:
                norm = np.linalg.norm(G[i, part])
                if clip is not None and norm > clip * n**-0.5:
                    G[i, part] *= clip * n**-0.5 / norm
        if nesterov:
            U = momentum * (U + G)
            V = V + U + G
        else:
            U = momentum * U + G
            V = V + U
        sent = np.zeros((n, d))
        for part in tensors:
            for i in range(n):
                if part in weights:
                    where = part.start + largest(V[i, part], ratio_at(t))
                    U[i, where] = 0 if masking else U[i, where]
                else:
                    where = np.arange(part.start, part.stop)
                sent[i, where] = V[i, where]
                V[i, where] = 0
        applied = sent.sum(axis=0)


def train(
    method: Method,
    grad: Callable[[Array, int], Array],
    X: Array,
    steps: int,
    lr: float,
    momentum: float = 0.0,
    decay: float = 0.0,
) -> list[Array]:
    """SGD from X on what `method` makes of grad(X, k) [n, D]; X after each step. X is updated in place."""
    next(method)
    m, xs = np.zeros_like(X), []
    for k in range(steps):
        g = method.send(grad(np.broadcast_to(X, (len(grad(X, 0)), X.size)), k))
        m = momentum * m + g + decay * X
        X -= lr * m
        xs.append(X.copy())
    return xs
