"""Exponential graphs: hops of 1, 2, 4, … along a circle, all at once or one per round.

Ying et al. 2021, "Exponential Graph is Provably Efficient for Decentralized Deep Training", arXiv 2110.13363.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from topologies.matrix import MixingMatrix
from topologies.registry import family
from topologies.schedule import Schedule


@family("exponential")
def exponential(n: int) -> nx.DiGraph:
    """Rank i sends to i + 1, i + 2, i + 4, … (mod n): directed, ceil(log2 n) messages per node.

    With the uniform weights 1/(d + 1), d = ceil(log2 n), W is doubly stochastic and, for n > 3, not
    symmetric. The gap is 2/(d + 1) for even n and more for odd n. Ying et al. 2021, arXiv 2110.13363.
    """
    graph = nx.empty_graph(n, create_using=nx.DiGraph)
    graph.add_edges_from((i, (i + hop) % n) for i in range(n) for hop in _hops(n))
    return graph


@family("one-peer")
def one_peer(n: int) -> Schedule:
    """A schedule: the hops of exponential one after another, one message per node and round.

    In round t rank i sends to i + 2^k (mod n), k = (t - 1) mod ceil(log2 n), and averages with what it
    receives: W = (I + P)/2. For n a power of two, any log2(n) rounds in a row are the exact average.
    Ying et al. 2021, arXiv 2110.13363.
    """
    eye = np.eye(n)
    # Node i receives from i - hop: row i of the shifted identity has its 1 there.
    rounds = [(eye + np.roll(eye, -hop, axis=1)) / 2 for hop in _hops(n)] or [eye]
    return Schedule(
        "one-peer", tuple(MixingMatrix(f"one-peer round {t}", W) for t, W in enumerate(rounds, 1))
    )


def _hops(n: int) -> list[int]:
    return [1 << k for k in range((n - 1).bit_length())]
