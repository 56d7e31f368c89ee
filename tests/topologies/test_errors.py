"""Every error says what was given, what fits and what to type."""

from __future__ import annotations

import re
from typing import Any

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, TopologyError, build

Case = tuple[tuple[Any, ...], dict[str, Any], str]

BUILD: list[Case] = [
    (("rnig", 8), {}, "unknown topology 'rnig'; did you mean 'ring'? there are: chain, "),
    (
        ("ring", 8, "metropolitan"),
        {},
        "unknown weight rule 'metropolitan'; did you mean 'metropolis'? there are:",
    ),
    (("ring", 8), {"d": 4}, "ring: got an unexpected keyword argument 'd'; its options: none"),
    (("regular", 8), {"sed": 4}, "regular: got an unexpected keyword argument 'sed'; its options: d, seed"),
    (("file", 8), {}, "argument: 'path'; its options: path"),
    (("ring", 0), {}, "ring: cannot have 0 nodes; n must be a whole number, 1 or more"),
    (("ring", 2.5), {}, "ring: cannot have 2.5 nodes"),
    (
        ("torus", 8),
        {"shape": "4x4"},
        "torus:4x4 has 16 nodes, given 8 ranks; fits: torus:2x4, torus:2x2x2, torus:8; or start 16 ranks",
    ),
    (("torus", 7), {"shape": "2x4"}, "torus:2x4 has 8 nodes, given 7 ranks; fits: torus:7; or start 8 ranks"),
    (("torus", 36), {"shape": "5x7"}, "fits: torus:6x6, torus:4x9, torus:3x12, torus:2x3x6, torus:36;"),
    (
        ("torus", 8),
        {"shape": "4by2"},
        "torus:4by2 is not a shape, which is sides joined by x; on 8 ranks fits:",
    ),
    (("torus", 8), {"shape": "-2x-4"}, "torus:-2x-4 is not a shape"),
    (("torus", 8), {"shape": "8x"}, "torus:8x is not a shape"),
    (("torus", 1), {"shape": "0"}, "torus:0 is not a shape"),
    (
        ("hypercube", 6),
        {},
        "hypercube needs a power of two of ranks, given 6: start 4 or 8 ranks, or type exponential, which",
    ),
    (
        ("regular", 5),
        {"d": 3},
        "regular:d=3 cannot connect 5 ranks: it needs 1 <= d < n, d*n even, and d > 1 beyond two ranks;"
        " fits: regular:d=2, regular:d=4",
    ),
    (("regular", 4), {"d": 8}, "regular:d=8 cannot connect 4 ranks"),
    (("regular", 4), {"d": 1}, "fits: regular:d=2, regular:d=3"),
    (("regular", 2), {"d": 4}, "fits: regular:d=1"),
    (("regular", 8), {"d": -1}, "regular:d=-1 cannot connect 8 ranks"),
    (("erdos-renyi", 8), {"p": 1.5}, "erdos-renyi: p is a probability, from 0 to 1; given p=1.5"),
    (
        ("erdos-renyi", 50),
        {"p": 0.01, "seed": 7},
        "erdos-renyi:p=0.01 on 50 ranks: 200 draws were all disconnected (seed=7);"
        " type for example erdos-renyi:p=0.16",
    ),
    (("small-world", 8), {"p": -0.1}, "small-world: p is a probability, from 0 to 1; given p=-0.1"),
    (
        ("small-world", 8),
        {"k": 3},
        "small-world:k=3 does not fit 8 ranks: k is even (half on either side), from 2 to 6;",
    ),
    (("small-world", 8), {"k": 9}, "fits: small-world:k=6"),
    (
        ("davis", 8),
        {},
        "davis is a network of 32 nodes, given 8 ranks: start 32 ranks, or type small-world, which fits",
    ),
    (("davis", 1), {}, "davis is a network of 32 nodes, given 1 ranks"),
    (("one-peer", 8, "lazy"), {}, "one-peer has its own weights, the rule lazy does not apply: leave it out"),
    (
        ("exponential", 8, "best-constant"),
        {},
        "exponential: the rule best-constant needs an undirected graph and this one is directed; use",
    ),
]


@pytest.mark.parametrize(("args", "options", "message"), BUILD, ids=lambda value: str(value)[:40])
def test_build(args: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)) as caught:
        build(*args, **options)
    assert isinstance(caught.value, ValueError)
    # What a message tells to type is itself a valid topology for that number of nodes.
    advice = str(caught.value).partition("fits: ")[2]
    for name, key, value in re.findall(r"([a-z-]+):(?:(\w+)=)?(\w+)", advice):
        assert build(name, args[1], "metropolis", **({key: int(value)} if key else {"shape": value}))


MATRICES: list[tuple[Any, str]] = [
    ([0.5, 0.5], "W has shape (2,); it must be square, one row per rank"),
    (np.ones((2, 3)) / 3, "W has shape (2, 3); it must be square"),
    (np.ones((0, 0)), "W has shape (0, 0); it must be square"),
    ([[1.0], [0.5, 0.5]], "W is not a matrix"),
    ([["a"]], "W holds <U1 values; they must be real numbers"),
    ([[1 + 0j]], "W holds complex128 values; they must be real numbers"),
    ([[0.5, np.nan], [0.5, 0.5]], "W[0, 1] is nan; every weight must be finite"),
    ([[0.5, 0.5], [np.inf, 0.5]], "W[1, 0] is inf; every weight must be finite"),
    (
        [[0.5, 0.5], [0.25, 0.5]],
        "row 1 of W sums to 0.75, but must sum to 1 (within 1e-09); write all digits",
    ),
    (np.eye(2), "the graph is not connected: rank 1 hears nothing from rank 0, not even through others"),
    ([[1, 0], [0.5, 0.5]], "the graph is not connected: rank 1 sends nothing to rank 0"),
    (
        np.kron(np.eye(2), np.full((2, 2), 0.5)),
        "the graph is not connected: rank 2 hears nothing from rank 0, not even through others;"
        " add edges that join the 2 of 4 ranks cut off",
    ),
    (
        [[0, 1], [1, 0]],
        "W never reaches consensus, its rho is 1 and must be below 1; give the nodes a positive own",
    ),
    ([[-1, 2], [2, -1]], "W never reaches consensus, its rho is 3 and must be below 1"),
]


@pytest.mark.parametrize(
    ("W", "message"), MATRICES, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_topology(W: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(f"mine: {message}")):
        Topology("mine", W)


def test_rows_may_miss_one_by_rounding() -> None:
    assert Topology("rounded", np.array([[0.5, 0.5 + 9e-10], [0.5, 0.5]])).size == 2
    with pytest.raises(TopologyError, match="row 0 of W sums to"):
        Topology("coarse", np.array([[0.5, 0.5 + 2e-9], [0.5, 0.5]]))


@pytest.mark.parametrize("rule", ["metropolis", "max-degree", "lazy"])
def test_uneven_directed_graphs_have_no_rule(rule: str) -> None:
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])
    message = (
        f"mine: the rule {rule} needs an undirected graph, or a directed one with equal degrees; this one is"
        " directed with degrees from 1 to 2: make its edges go both ways, or give the matrix W itself"
    )
    with pytest.raises(TopologyError, match=message):
        Topology.from_graph(graph, rule, "mine")


def test_graphs_from_networkx() -> None:
    with pytest.raises(TopologyError, match="graph: the graph has no nodes"):
        Topology.from_graph(nx.Graph())
    with pytest.raises(
        TopologyError, match="graph: the graph is not connected: rank 2 hears nothing from rank 0"
    ):
        Topology.from_graph(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(
        TopologyError, match="unknown weight rule 'max'; there are: best-constant, lazy, max-degree"
    ):
        Topology.from_graph(nx.path_graph(2), "max")
