"""The ring of long means, its messages moved by hand."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from gossip.transport.base import mean_bytes
from gossip.transport.ring import BYTES, Ring, serves

SIZES = [0, 1, 2, 7, 64, 1001]


def run(vectors: list[np.ndarray], order: np.random.Generator) -> tuple[list[np.ndarray], list[int]]:
    """The means, and the bytes that each node sends; the nodes take turns in a random order."""
    n = len(vectors)
    means = [np.full_like(x, np.nan) for x in vectors]
    rings = [Ring(x.copy(), mean, rank, n) for rank, (x, mean) in enumerate(zip(vectors, means, strict=True))]
    inbox: list[deque[np.ndarray]] = [deque() for _ in range(n)]  # from the node before
    sent, taken = [0] * n, [0] * n

    def send(rank: int, k: int) -> None:
        if k < rings[rank].messages:
            message = rings[rank].outgoing(k)
            inbox[(rank + 1) % n].append(message)  # no copy: what is on its way must not change
            sent[rank] += message.nbytes

    for rank in range(n):
        send(rank, 0)
    while any(inbox):
        rank = int(order.choice([r for r in range(n) if inbox[r]]))
        k = taken[rank]
        rings[rank].incoming(k)[:] = inbox[rank].popleft()
        if k + 1 < rings[rank].messages:
            rings[rank].incoming(k + 1)[:] = np.nan  # it may come before this one is taken
        rings[rank].take(k)
        taken[rank] += 1
        send(rank, k + 1)
    assert taken == [ring.messages for ring in rings]
    return means, sent


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("d", SIZES)
def test_every_node_has_the_same_mean(n: int, d: int) -> None:
    order = np.random.default_rng(n * 10_000 + d)
    vectors = [order.standard_normal(d).astype(np.float32) for _ in range(n)]
    means, sent = run(vectors, order)
    exact = np.stack(vectors).astype(np.float64).mean(0)
    bound = n * 2.0**-24 * np.abs(np.stack(vectors)).astype(np.float64).mean(0)
    assert bool((np.abs(means[0] - exact) <= bound).all())
    for mean in means[1:]:
        np.testing.assert_array_equal(mean, means[0])
    assert sum(sent) == 2 * (n - 1) * 4 * d  # over all nodes exactly, and each as counted up to its cuts
    assert all(abs(each - mean_bytes(d, n)) <= 8 for each in sent)


def test_short_vectors_and_single_nodes_have_no_ring() -> None:
    assert not serves(1 << 30, 1)
    for n in (2, 8, 100):
        assert not serves(n * n * BYTES - 4, n)
        assert serves(n * n * BYTES, n)
