"""Networks that people made."""

from __future__ import annotations

import networkx as nx

from topologies.errors import TopologyError
from topologies.registry import family


@family("davis")
def davis(n: int) -> nx.Graph:
    """The Southern Women social network, 32 nodes: 18 women (ranks 0-17) and the 14 events they went to.

    Davis, Gardner & Gardner 1941, "Deep South". Koloskova et al. 2020, arXiv 1907.09356, train on it.
    """
    graph = nx.davis_southern_women_graph()
    if n != len(graph):
        raise TopologyError(
            f"davis is a network of {len(graph)} nodes, given {n} ranks: start {len(graph)} ranks,"
            " or type small-world, which fits any number"
        )
    return nx.convert_node_labels_to_integers(graph)
