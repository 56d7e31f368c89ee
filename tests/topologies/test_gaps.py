"""Spectral gaps and weights against the formulas of the literature."""

from __future__ import annotations

import itertools
import math
from math import cos, pi

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build

SIZES = [3, 4, 5, 8, 9, 16, 31]


def gap(name: str, n: int, weights: str = "metropolis") -> float:
    return build(name, n, weights).spectral_gap


def from_laplacian(eigenvalues: list[float], alpha: float) -> float:
    """The gap of W = I - alpha L; `eigenvalues` are L's, the 0 of the average left out once."""
    rest = sorted(eigenvalues)[1:]
    return 1 - max(abs(1 - alpha * value) for value in rest)


@pytest.mark.parametrize("n", SIZES)
def test_ring(n: int) -> None:
    ring = build("ring", n).at(1)
    assert all(w == pytest.approx(1 / 3, abs=1e-15) for rank in range(n) for w in ring.weights(rank).values())
    assert ring.spectral_gap == pytest.approx(1 - (1 / 3 + 2 / 3 * cos(2 * pi / n)), abs=1e-12)
    lowest = min(1 / 3 + 2 / 3 * cos(2 * pi * k / n) for k in range(n))
    assert ring.mu == pytest.approx(1 - lowest, abs=1e-12)


@pytest.mark.parametrize(("n", "threshold"), [(8, 0.0732), (16, 0.0190)])
def test_dcd_threshold_on_rings(n: int, threshold: float) -> None:
    ring = build("ring", n).at(1)
    assert ring.spectral_gap / (2 * ring.mu) == pytest.approx(threshold, abs=5e-5)


@pytest.mark.parametrize("n", SIZES)
def test_chain_star_and_complete(n: int) -> None:
    assert gap("chain", n) == pytest.approx((2 - 2 * cos(pi / n)) / 3, abs=1e-12)
    assert gap("star", n) == pytest.approx(1 / n, abs=1e-12)
    assert gap("complete", n) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", ["ring", "chain", "star", "complete", "tree", "torus", "exponential"])
def test_two_nodes_share_one_edge_and_average_exactly(name: str) -> None:
    pair = build(name, 2).at(1)
    assert pair.W.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert pair.max_degree == 1


@pytest.mark.parametrize("d", [0, 1, 2, 3, 4, 5])
def test_hypercube(d: int) -> None:
    assert gap("hypercube", 2**d) == pytest.approx(min(1, 2 / (d + 1)), abs=1e-12)
    cube = build("hypercube", 2**d).at(1)
    assert all((i ^ j).bit_count() == 1 for i in range(cube.size) for j in cube.in_neighbors(i))


@pytest.mark.parametrize("shape", ["4x4", "3x5", "2x4", "8", "1x8", "2x2x2", "3x3x3", "2x3x4", "2x2x2x2"])
def test_torus(shape: str) -> None:
    sides = list(map(int, shape.split("x")))
    torus = build("torus", math.prod(sides), shape=shape).at(1)
    d = sum({1: 0, 2: 1}.get(side, 2) for side in sides)
    assert {len(torus.in_neighbors(rank)) for rank in range(torus.size)} == {d}
    per_side = [
        [(1 - cos(pi * k)) if side == 2 else 2 - 2 * cos(2 * pi * k / side) for k in range(side)]
        for side in sides
    ]
    laplacian = [sum(parts) for parts in itertools.product(*per_side)]
    assert torus.spectral_gap == pytest.approx(from_laplacian(laplacian, 1 / (d + 1)), abs=1e-12)


def test_torus_counts_ranks_along_the_last_side_first() -> None:
    assert build("torus", 12, shape="3x4").at(1).in_neighbors(0) == (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("n", "shape"), [(16, "4x4"), (8, "2x4"), (12, "3x4"), (36, "6x6"), (7, "1x7"), (1, "1x1")]
)
def test_the_default_torus_is_the_most_square(n: int, shape: str) -> None:
    assert build("torus", n).fingerprint() == build("torus", n, shape=shape).fingerprint()


@pytest.mark.parametrize("shape", ["8", "1x8", "8x1x1"])
def test_a_torus_of_one_side_is_the_ring(shape: str) -> None:
    assert build("torus", 8, shape=shape).fingerprint() == build("ring", 8).fingerprint()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 31, 32])
def test_exponential_graph(n: int) -> None:
    """Ying et al. 2021, arXiv 2110.13363: the gap is 2/(1 + ceil(log2 n)) for even n, more for odd n."""
    graph = build("exponential", n).at(1)
    d = math.ceil(math.log2(n))
    assert (
        {len(graph.in_neighbors(i)) for i in range(n)}
        == {len(graph.out_neighbors(i)) for i in range(n)}
        == {d}
    )
    assert set(graph.out_neighbors(0)) == {2**k for k in range(d)}
    assert all(
        w == pytest.approx(1 / (d + 1), abs=1e-15) for i in range(n) for w in graph.weights(i).values()
    )
    if n % 2:
        assert graph.spectral_gap > 2 / (d + 1)
    else:
        assert graph.spectral_gap == pytest.approx(2 / (d + 1), abs=1e-12)


def test_tree_ranks_know_their_parent() -> None:
    tree = build("tree", 11).at(1)
    assert all((i - 1) // 2 in tree.in_neighbors(i) for i in range(1, 11))
    assert sum(len(tree.in_neighbors(i)) for i in range(11)) == 2 * 10


def test_davis_is_the_network_of_women_and_events() -> None:
    davis = build("davis", 32).at(1)
    assert sum(len(davis.in_neighbors(i)) for i in range(32)) == 2 * 89
    assert all((i < 18) != (j < 18) for i in range(32) for j in davis.in_neighbors(i))


@pytest.mark.parametrize(
    "name", ["ring", "chain", "star", "complete", "tree", "torus", "erdos-renyi", "small-world"]
)
@pytest.mark.parametrize("n", [5, 8, 15])
def test_weight_rules_are_what_their_papers_say(name: str, n: int) -> None:
    graph = {rule: build(name, n, rule).at(1) for rule in ("metropolis", "max-degree", "best-constant")}
    W = graph["metropolis"].W
    degree = [len(graph["metropolis"].in_neighbors(i)) for i in range(n)]
    edges = [(i, j) for i in range(n) for j in graph["metropolis"].in_neighbors(i)]
    assert all(W[i, j] == 1 / (1 + max(degree[i], degree[j])) for i, j in edges)
    assert all(graph["max-degree"].W[i, j] == 1 / (1 + max(degree)) for i, j in edges)

    # Xiao & Boyd 2004: with the best constant, rho = (l_1 - l_{n-1})/(l_1 + l_{n-1}), the least of any.
    laplacian = np.diag(degree) - (W != 0) * (1 - np.eye(n))
    values = np.linalg.eigvalsh(laplacian)
    best = graph["best-constant"].spectral_gap
    assert best == pytest.approx(1 - (values[-1] - values[1]) / (values[-1] + values[1]), abs=1e-10)
    for alpha in np.linspace(0.01, 1, 100):
        assert from_laplacian(values.tolist(), float(alpha)) <= best + 1e-10


def test_best_constant_weights_do_not_depend_on_the_last_digits_of_eigenvalues() -> None:
    weights = build("ring", 8, "best-constant").at(1).weights(0)
    assert weights[1] == weights[7] == float(f"{2 / (4 + 2 - 2 * cos(2 * pi / 8)):.12g}")


def test_any_networkx_graph_works() -> None:
    pentagon = nx.relabel_nodes(nx.cycle_graph(5), dict(enumerate("abcde")))
    assert Topology.from_graph(pentagon).fingerprint() == build("ring", 5).fingerprint()
    shuffled = nx.Graph([(4, 0), (3, 4), (1, 2), (2, 3), (0, 1)])  # labels 0 … n-1 are ranks in any order
    assert Topology.from_graph(shuffled).fingerprint() == build("ring", 5).fingerprint()
    noisy = nx.MultiGraph([*nx.cycle_graph(5).edges(), (0, 1), (3, 3)])  # doubled edge, self-loop
    assert Topology.from_graph(noisy).fingerprint() == build("ring", 5).fingerprint()
    both_ways = nx.cycle_graph(5).to_directed()
    for rule in ("metropolis", "best-constant"):
        assert Topology.from_graph(both_ways, rule).fingerprint() == build("ring", 5, rule).fingerprint()
    assert Topology.from_graph(nx.petersen_graph(), "lazy", "petersen").name == "petersen"
    one_way = Topology.from_graph(nx.cycle_graph(5, create_using=nx.DiGraph))
    assert one_way.in_neighbors(0) == (4,) and one_way.weights(0) == {0: 0.5, 4: 0.5}
