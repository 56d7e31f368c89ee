"""Rules that turn a graph into a mixing matrix: RULES[name](graph) -> W, float64 [n, n].

A rule takes a graph (nx.DiGraph is one too) on the nodes 0 … n-1 without self-loops. The W of an undirected
graph is symmetric to the last bit. Own weights are 1 minus the sum of the others: the exact sum of each row
rounds to 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import networkx as nx
import numpy as np
import numpy.typing as npt

from topologies.errors import TopologyError


def metropolis(graph: nx.Graph) -> npt.NDArray[np.float64]:
    """1/(1 + max(d_i, d_j)) on each edge; 1/(d + 1) on a directed graph whose degrees are all d.

    Metropolis-Hastings weights: Xiao, Boyd & Lall 2005, "A scheme for robust distributed sensor fusion".
    """
    graph, d = _degrees("metropolis", graph)
    return _weigh(graph, lambda i, j: 1 / (1 + max(d[i], d[j])))


def max_degree(graph: nx.Graph) -> npt.NDArray[np.float64]:
    """1/(1 + largest degree) on every edge; 1/(d + 1) on a directed graph whose degrees are all d.

    Xiao, Boyd & Lall 2005. (With 1/d_max, as in Xiao & Boyd 2004, bipartite graphs would not mix.)
    """
    graph, d = _degrees("max-degree", graph)
    largest = max(d.values())
    return _weigh(graph, lambda i, j: 1 / (1 + largest))


def lazy(graph: nx.Graph) -> npt.NDArray[np.float64]:
    """(I + W)/2 of the metropolis W: half the pace, and no eigenvalue below 0."""
    graph, d = _degrees("lazy", graph)
    return _weigh(graph, lambda i, j: 0.5 / (1 + max(d[i], d[j])))


def best_constant(graph: nx.Graph) -> npt.NDArray[np.float64]:
    """The equal weight on every edge that mixes fastest: 2/(l_1 + l_{n-1}) of the Laplacian's eigenvalues.

    l_1 is the largest and l_{n-1} the smallest eigenvalue above 0. Own weights can be negative (on a star of
    4 or more nodes). Xiao & Boyd 2004, "Fast linear iterations for distributed averaging".
    """
    undirected = _undirected(graph)
    if undirected is None:
        raise TopologyError(
            "the rule best-constant needs an undirected graph and this one is directed; use metropolis"
            " if all degrees are equal, or give the matrix W itself (file:W.npy)"
        )
    if len(undirected) == 1:
        return np.ones((1, 1))
    edges = nx.to_numpy_array(undirected, nodelist=range(len(graph)), weight=None)
    eigenvalues = np.linalg.eigvalsh(np.diag(edges.sum(1)) - edges)  # networkx's own Laplacian needs scipy
    # LAPACK's last digits differ between machines; all ranks must get the same W.
    alpha = float(f"{2 / (eigenvalues[1] + eigenvalues[-1]):.12g}")
    return _weigh(undirected, lambda i, j: alpha)


RULES: dict[str, Callable[[nx.Graph], npt.NDArray[np.float64]]] = {
    "metropolis": metropolis,
    "max-degree": max_degree,
    "lazy": lazy,
    "best-constant": best_constant,
}


def _undirected(graph: nx.Graph) -> nx.Graph | None:
    """The graph with undirected edges, if every edge goes both ways."""
    if not graph.is_directed():
        return graph
    return graph.to_undirected() if all(graph.has_edge(j, i) for i, j in graph.edges()) else None


def _degrees(rule: str, graph: nx.Graph) -> tuple[nx.Graph, dict[int, int]]:
    """The graph, undirected where it can be, and each node's number of neighbours."""
    undirected = _undirected(graph)
    if undirected is not None:
        return undirected, dict(undirected.degree())
    degrees = {d for _, d in graph.in_degree()} | {d for _, d in graph.out_degree()}
    if len(degrees) > 1:
        raise TopologyError(
            f"the rule {rule} needs an undirected graph, or a directed one with equal degrees; this one is"
            f" directed with degrees from {min(degrees)} to {max(degrees)}: make its edges go both ways,"
            " or give the matrix W itself (file:W.npy)"
        )
    return graph, dict(graph.in_degree())


def _weigh(graph: nx.Graph, weight: Callable[[int, int], float]) -> npt.NDArray[np.float64]:
    """W from the weight of each edge (symmetric in i and j), own weights filled in."""
    W = np.zeros((len(graph), len(graph)))
    for j, i in graph.edges():
        W[i, j] = weight(i, j)
        if not graph.is_directed():
            W[j, i] = W[i, j]
    for i, row in enumerate(W):
        W[i, i] = math.fsum([1.0, *-row])
    return W
