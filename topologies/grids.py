"""Products of rings and of edges: torus and hypercube."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np

from topologies.errors import TopologyError
from topologies.registry import family


@family("torus")
def torus(n: int, *, shape: str = "") -> nx.Graph:
    """A grid whose sides wrap around, such as torus:4x4; without a shape the most square one of n nodes.

    shape: the sides, "8", "2x4", "2x2x2"…; ranks count along the last side first. A side of 2 has one edge, a
    side of 1 none; torus:8 is a ring. With d neighbours per node and weights 1/(d + 1), W has the eigenvalues
    1 - sum_s l_s/(d + 1), l_s = 2 - 2 cos(2 pi k_s/s), k_s < s, over the sides s (for s = 2: half of that).
    """
    sides = _sides(n, shape) if shape else _most_square(n)
    index = np.arange(n).reshape(sides)
    graph = nx.empty_graph(n)
    for axis, side in enumerate(sides):
        if side > 1:
            after = np.roll(index, -1, axis)
            graph.add_edges_from(zip(index.ravel().tolist(), after.ravel().tolist(), strict=True))
    return graph


@family("hypercube")
def hypercube(n: int) -> nx.Graph:
    """Ranks whose binary numbers differ in one digit know each other; n = 2^d.

    With d neighbours per node and weights 1/(d + 1) the gap is 2/(d + 1).
    """
    below = 1 << (n.bit_length() - 1)
    if n != below:
        raise TopologyError(
            f"hypercube needs a power of two of ranks, given {n}: start {below} or {2 * below} ranks,"
            " or type exponential, which fits any number"
        )
    graph = nx.empty_graph(n)
    graph.add_edges_from((i, i ^ 1 << k) for i in range(n) for k in range(n.bit_length() - 1))
    return graph


def _most_square(n: int) -> tuple[int, int]:
    rows = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return rows, n // rows


def _sides(n: int, shape: str) -> tuple[int, ...]:
    words = shape.split("x")
    fits = "fits: " + ", ".join(f"torus:{'x'.join(map(str, sides))}" for sides in _fitting(n))
    if not all(word.isascii() and word.isdecimal() and int(word) > 0 for word in words):
        raise TopologyError(f"torus:{shape} is not a shape, which is sides joined by x; on {n} ranks {fits}")
    sides = tuple(map(int, words))
    if math.prod(sides) != n:
        raise TopologyError(
            f"torus:{shape} has {math.prod(sides)} nodes, given {n} ranks; {fits};"
            f" or start {math.prod(sides)} ranks"
        )
    return sides


def _fitting(n: int) -> list[tuple[int, ...]]:
    """Shapes to suggest: 2-D from the most square on, one 3-D, and the ring."""
    flat = [(a, n // a) for a in range(math.isqrt(n), 1, -1) if n % a == 0]
    deep = [(a, *_most_square(n // a)) for a in range(2, n) if n % a == 0]
    return [*flat[:3], *(sides for sides in deep[:1] if 1 not in sides), (n,)]
