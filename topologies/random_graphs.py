"""Random graphs, drawn from a seed: the same seed gives the same graph on every rank.

A draw that is not connected is thrown away and the next one taken from the same random stream.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable

import networkx as nx

from topologies.errors import TopologyError
from topologies.registry import family

DRAWS = 200


@family("regular")
def regular(n: int, *, d: int = 0, seed: int = 0) -> nx.Graph:
    """A random graph in which every node knows d others (d=0: 4, or all others below five nodes).

    Exists when d < n and d*n is even. For d > 2 almost surely an expander: with weights 1/(d + 1) the gap
    stays near 1 - (1 + 2 sqrt(d - 1))/(d + 1) however large n is. Friedman 2008, arXiv cs/0405020.
    """
    if n == 1:
        return nx.empty_graph(1)  # nobody to know: every d fits
    d = d or min(4, n - 1)
    if not _regular_exists(n, d):
        fits = [f"regular:d={k}" for k in range(1, n) if _regular_exists(n, k)]
        nearest = sorted(fits, key=lambda fit: abs(int(fit.rpartition("=")[2]) - d))[:3]
        raise TopologyError(
            f"regular:d={d} cannot connect {n} ranks: it needs 1 <= d < n, d*n even, and d > 1 beyond two"
            f" ranks; fits: {', '.join(nearest)}"
        )
    title = f"regular:d={d} on {n} ranks"
    return _connected(lambda rng: nx.random_regular_graph(d, n, seed=rng), seed, title, f"regular:d={d + 2}")


@family("erdos-renyi")
def erdos_renyi(n: int, *, p: float = 0.3, seed: int = 0) -> nx.Graph:
    """Every pair of nodes is joined with probability p, drawn again until all are connected.

    Connected with high probability when p > ln(n)/n (Erdős & Rényi 1959; Gilbert 1959).
    """
    if not 0 <= p <= 1:
        raise TopologyError(f"erdos-renyi: p is a probability, from 0 to 1; given p={p}")
    enough = min(1.0, math.ceil(200 * math.log(n + 1) / n) / 100)  # twice the threshold, rounded up
    title = f"erdos-renyi:p={p} on {n} ranks"
    return _connected(
        lambda rng: nx.gnp_random_graph(n, p, seed=rng), seed, title, f"erdos-renyi:p={enough:g}"
    )


@family("small-world")
def small_world(n: int, *, k: int = 0, p: float = 0.1, seed: int = 0) -> nx.Graph:
    """A ring where each node knows its k nearest, with each edge rewired with probability p.

    k=0 means 4, or 2 below five nodes. Drawn again until all are connected.
    Watts & Strogatz 1998, "Collective dynamics of 'small-world' networks", Nature 393.
    """
    if not 0 <= p <= 1:
        raise TopologyError(f"small-world: p is a probability, from 0 to 1; given p={p}")
    if n == 1:
        return nx.empty_graph(1)
    k = k or (4 if n > 4 else 2)
    most = max(2, (n - 1) // 2 * 2)
    if k % 2 or not 2 <= k <= most:
        raise TopologyError(
            f"small-world:k={k} does not fit {n} ranks: k is even (half on either side), from 2 to {most};"
            f" fits: small-world:k={min(most, max(2, k // 2 * 2))}"
        )
    title = f"small-world:k={k},p={p} on {n} ranks"
    return _connected(
        lambda rng: nx.watts_strogatz_graph(n, k, p, seed=rng), seed, title, f"small-world:k={k + 2}"
    )


def _regular_exists(n: int, d: int) -> bool:
    return 1 <= d < n and d * n % 2 == 0 and (d > 1 or n == 2)


def _connected(draw: Callable[[random.Random], nx.Graph], seed: int, title: str, fits: str) -> nx.Graph:
    rng = random.Random(operator.index(seed))  # it takes no numpy numbers
    for _ in range(DRAWS):
        graph = draw(rng)
        if nx.is_connected(graph):
            return graph
    raise TopologyError(
        f"{title}: {DRAWS} draws were all disconnected (seed={seed}); type for example {fits}"
    )
