"""Random families: drawn from the seed alone, and of the kind they claim to be."""

from __future__ import annotations

import random

import numpy as np
import pytest

from topologies import build

RANDOM = ["regular", "erdos-renyi", "small-world"]


@pytest.mark.parametrize("name", RANDOM)
def test_the_seed_alone_decides(name: str) -> None:
    first = build(name, 20, seed=3).fingerprint()
    random.seed(99)
    np.random.seed(99)
    state, numpy_state = random.getstate(), repr(np.random.get_state())
    assert build(name, 20, seed=3).fingerprint() == first
    # …and the global generators are left alone.
    assert random.getstate() == state and repr(np.random.get_state()) == numpy_state
    assert len({build(name, 20, seed=seed).fingerprint() for seed in range(5)}) == 5
    assert build(name, 20).fingerprint() == build(name, 20, seed=np.int64(0)).fingerprint()


@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 2), (5, 2), (5, 4), (8, 3), (20, 2), (20, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_regular(n: int, d: int, seed: int) -> None:
    graph = build("regular", n, d=d, seed=seed).at(1)
    assert {len(graph.in_neighbors(rank)) for rank in range(n)} == {d}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_default_degrees_fit_any_number_of_nodes(n: int) -> None:
    assert build("regular", n).fingerprint() == build("regular", n, d=min(4, n - 1)).fingerprint()
    assert build("small-world", n).fingerprint() == build("small-world", n, k=4 if n > 4 else 2).fingerprint()


@pytest.mark.parametrize("d", [3, 4, 6])
def test_random_regular_graphs_expand(d: int) -> None:
    """Alon-Boppana and Friedman: l_2 of the adjacency matrix is close to 2 sqrt(d - 1) for large n."""
    gap = build("regular", 200, d=d).spectral_gap
    assert gap == pytest.approx(1 - (1 + 2 * np.sqrt(d - 1)) / (d + 1), rel=0.25)


def test_erdos_renyi_has_the_asked_for_density() -> None:
    n, p = 60, 0.3
    pairs = n * (n - 1) / 2
    counts = [
        (np.count_nonzero(build("erdos-renyi", n, p=p, seed=seed).at(1).W) - n) / 2 for seed in range(10)
    ]
    assert np.mean(counts) == pytest.approx(pairs * p, abs=4 * np.sqrt(pairs * p * (1 - p) / 10))
    assert build("erdos-renyi", 8, p=1).fingerprint() == build("complete", 8).fingerprint()


@pytest.mark.parametrize("seed", range(8))
def test_disconnected_draws_are_drawn_again(seed: int) -> None:
    # A single draw is connected with probability p = 0.05 here, so most of these seeds need several.
    assert build("erdos-renyi", 2, p=0.05, seed=seed).fingerprint() == build("complete", 2).fingerprint()


def test_small_world_rewires_a_ring_lattice() -> None:
    lattice = build("small-world", 12, k=4, p=0).at(1)
    assert lattice.in_neighbors(0) == (1, 2, 10, 11)
    assert build("small-world", 12, k=2, p=0).fingerprint() == build("ring", 12).fingerprint()
    rewired = build("small-world", 12, k=4, p=0.5).at(1)
    assert rewired.fingerprint() != lattice.fingerprint()
    assert sum(len(rewired.in_neighbors(i)) for i in range(12)) == 12 * 4
