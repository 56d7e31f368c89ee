"""Graphs that every textbook has: ring, chain, star, complete, tree. All fit any n."""

from __future__ import annotations

import networkx as nx

from topologies.registry import family


@family("ring")
def ring(n: int) -> nx.Graph:
    """Each node knows the two beside it, in a circle; the graph of the D-PSGD, DCD and ECD papers.

    With weights 1/3 (n > 2) the gap is 1 - (1 + 2 cos(2 pi/n))/3, about 13/n^2. Two nodes share one edge.
    Lian et al. 2017, arXiv 1705.09056.
    """
    graph = nx.path_graph(n)
    if n > 2:
        graph.add_edge(n - 1, 0)
    return graph


@family("chain")
def chain(n: int) -> nx.Graph:
    """A ring that is cut open: rank i knows i - 1 and i + 1.

    With metropolis weights 1/3 (n > 2) the gap is (2 - 2 cos(pi/n))/3.
    """
    return nx.path_graph(n)


@family("star")
def star(n: int) -> nx.Graph:
    """Rank 0 knows everyone, the others know only rank 0.

    With metropolis weights 1/n (n > 2) the gap is 1/n.
    """
    return nx.star_graph(n - 1)


@family("complete")
def complete(n: int) -> nx.Graph:
    """Everyone knows everyone: one exchange is the exact average (gap 1), at n - 1 messages per node."""
    return nx.complete_graph(n)


@family("tree")
def tree(n: int) -> nx.Graph:
    """A binary tree, filled level by level: rank i > 0 knows its parent (i - 1)//2."""
    return nx.full_rary_tree(2, n)
