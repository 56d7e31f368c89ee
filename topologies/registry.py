"""The table of graph families.

A new family is one function: take n and keyword options, return a networkx graph on the nodes 0 … n-1.

    @family("wheel")
    def wheel(n: int) -> nx.Graph:
        \"\"\"A ring whose nodes all know rank 0.\"\"\"          # the summary that `gossip list` shows
        return nx.wheel_graph(n)
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import networkx as nx
import numpy as np
import numpy.typing as npt

from topologies.errors import TopologyError
from topologies.schedule import Schedule

# What a family may return: a graph to be weighed by a rule, W itself, or a schedule.
Made: typing.TypeAlias = "nx.Graph | npt.NDArray[np.float64] | Schedule"

FAMILIES: dict[str, Callable[..., Made]] = {}

F = typing.TypeVar("F", bound=Callable[..., Made])


def family(name: str) -> Callable[[F], F]:
    """Register a function f(n, *, options…) under `name`, as it is typed on the command line."""

    def add(function: F) -> F:
        if name in FAMILIES:
            raise TopologyError(f"there is a family {name!r} already")
        FAMILIES[name] = function
        return function

    return add
