"""Graphs and matrices from files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from topologies import RULES, Topology, TopologyError, build

WRITERS: dict[str, Callable[[nx.Graph, Path], None]] = {
    ".adjlist": nx.write_adjlist,
    ".edgelist": nx.write_edgelist,
    ".graphml": nx.write_graphml,
}
GRAPHS = {"ring": nx.cycle_graph(8), "tree": nx.full_rary_tree(2, 11), "petersen": nx.petersen_graph()}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_graph_files_round_trip(tmp_path: Path, suffix: str, rule: str, graph: nx.Graph) -> None:
    # Edges in another order than the labels': the labels are the ranks all the same.
    mixed = nx.Graph(list(graph.edges())[::-1])
    path = tmp_path / f"graph{suffix}"
    WRITERS[suffix](mixed, path)
    topology = build("file", len(graph), rule, path=str(path))
    assert topology.fingerprint() == Topology.from_graph(graph, rule).fingerprint()
    assert topology.name == f"file:path={path}"


@pytest.mark.parametrize("name", ["ring", "star", "exponential"])
def test_matrix_files_are_used_as_they_are(tmp_path: Path, name: str) -> None:
    W = build(name, 8).at(1).W
    np.save(tmp_path / "W.npy", W)
    np.savetxt(tmp_path / "W.csv", W, delimiter=",", fmt="%.17g")
    for file in ("W.npy", "W.csv"):
        assert build("file", 8, path=str(tmp_path / file)).fingerprint() == build(name, 8).fingerprint()


def test_one_node_files(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("1\n")
    (tmp_path / "one.adjlist").write_text("0\n")
    np.save(tmp_path / "one.npy", np.ones((1, 1)))
    for file in ("one.csv", "one.adjlist", "one.npy"):
        assert build("file", 1, path=str(tmp_path / file)).at(1).W.tolist() == [[1.0]]


def test_adjacency_lists_may_have_comments_and_names(tmp_path: Path) -> None:
    path = tmp_path / "racks.adjlist"
    path.write_text("# a star\nhub left right\n")
    topology = build("file", 3, path=str(path)).at(1)
    assert topology.in_neighbors(0) == (1, 2) and topology.in_neighbors(2) == (0,)


def test_edge_lists_ignore_weights(tmp_path: Path) -> None:
    path = tmp_path / "weighted.edgelist"
    path.write_text("0 1 0.7\n1 2 0.1\n2 0 0.2\n")
    assert build("file", 3, path=str(path)).fingerprint() == build("ring", 3).fingerprint()


def test_directed_graphml(tmp_path: Path) -> None:
    path = tmp_path / "cycle.graphml"
    nx.write_graphml(nx.cycle_graph(5, create_using=nx.DiGraph), path)
    topology = build("file", 5, path=str(path)).at(1)
    assert topology.in_neighbors(0) == (4,) and topology.is_doubly_stochastic


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "pair.edgelist").write_text("0 1\n")
    assert build("file", 2, path="~/pair.edgelist").size == 2


BAD = {
    "missing.npy": (None, "file:.*missing.npy cannot be read: No such file"),
    "graph.txt": (
        "0 1\n",
        r"its ending does not tell what it holds; rename it to one of \.adjlist, \.edgelist",
    ),
    "bad.npy": ("not an array", r"is not a valid \.npy file"),
    "bad.csv": ("0.5,0.5\n0.5,half\n", r"is not a valid \.csv file: .*half"),
    "uneven.csv": ("0.5,0.5\n1\n", r"is not a valid \.csv file"),
    "bad.graphml": ("<graphml><graph>", r"is not a valid \.graphml file"),
    "bad.edgelist": ("0 1\n\xff\n".encode("latin-1"), r"is not a valid \.edgelist file"),
    "small.edgelist": ("0 1\n1 2\n", "has 3 nodes, given 2 ranks: start 3 ranks or use another file"),
    **{f"empty{end}": ("", "holds no nodes") for end in (".edgelist", ".adjlist", ".csv")},
    "from_one.edgelist": ("1 2\n", "has 2 nodes but one is numbered 2; number them from 0 to 1"),
    "negative.edgelist": ("-1 0\n", "has 2 nodes but one is numbered -1; number them from 0 to 1"),
    "mixed.edgelist": ("0 b\n", r"has numbers \(0\) and names \(b\) as labels"),
    "cut.npy": (b"PK\x03\x04", r"is not a valid \.npy file"),
    "rows.csv": ("0.5,0.4\n0.4,0.6\n", "row 0 of W sums to 0.9, but must sum to 1"),
    "oblong.csv": ("0.5,0.5,0\n0,1,0\n", r"W has shape \(2, 3\); it must be square, one row per rank"),
    "apart.adjlist": ("0\n1\n", "the graph is not connected: rank 1 hears nothing from rank 0"),
}


@pytest.mark.parametrize("file", BAD)
def test_bad_files_say_what_is_wrong(tmp_path: Path, file: str) -> None:
    content, message = BAD[file]
    if content is not None:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TopologyError, match=message) as caught:
        build("file", 2, path=str(tmp_path / file))
    assert file in str(caught.value)


@pytest.mark.parametrize("shape", [(2,), (2, 2, 2), ()])
def test_a_matrix_has_two_dimensions(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "W.npy", np.ones(shape))
    with pytest.raises(TopologyError, match=r"holds an array of shape .*; W is a square matrix"):
        build("file", 2, path=str(tmp_path / "W.npy"))


def test_pickles_in_npy_are_never_run(tmp_path: Path) -> None:
    np.save(tmp_path / "object.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(TopologyError, match="allow_pickle=False"):
        build("file", 1, path=str(tmp_path / "object.npy"))


def test_a_rule_does_not_apply_to_a_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "W.npy", np.full((2, 2), 0.5))
    with pytest.raises(
        TopologyError, match="has its own weights, the rule lazy does not apply: leave it out"
    ):
        build("file", 2, "lazy", path=str(tmp_path / "W.npy"))
