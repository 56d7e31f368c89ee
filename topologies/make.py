"""From a family's name and options, a graph or a matrix to a Topology or a Schedule."""

from __future__ import annotations

import inspect

import networkx as nx
import numpy as np

from topologies.errors import TopologyError, unknown
from topologies.matrix import Topology
from topologies.registry import FAMILIES, Made
from topologies.schedule import Schedule


def build(name: str, n: int, weights: str = "metropolis", **options: object) -> Topology | Schedule:
    """The topology of family `name` on n nodes, weighed by the rule `weights`.

    name: a key of FAMILIES; options: its keyword options, seeds included, with their Python types.
    The result is a pure function of the arguments (and of the file, if any): every rank can build its own.
    Raises TopologyError when a name is unknown, an option is missing or unfit, or n nodes have no such graph.
    """
    if name not in FAMILIES:
        raise unknown("topology", name, FAMILIES)
    if not isinstance(n, int) or n < 1:
        raise TopologyError(f"{name}: cannot have {n!r} nodes; n must be a whole number, 1 or more")
    signature = inspect.signature(FAMILIES[name])
    try:
        signature.bind(n, **options)
    except TypeError as error:
        _, *known = signature.parameters
        raise TopologyError(f"{name}: {error}; its options: {', '.join(known) or 'none'}") from None
    return weighed(FAMILIES[name](n, **options), weights, spec(name, options))


def weighed(made: Made | Topology, weights: str, name: str) -> Topology | Schedule:
    """A graph with the weights of the rule `weights`; a matrix, Topology or Schedule with its own.

    Raises TopologyError for a rule where there are weights already, so that none is ignored.
    """
    if isinstance(made, nx.Graph):
        return Topology.from_graph(made, weights, name)
    if weights != "metropolis":
        raise TopologyError(f"{name} has its own weights, the rule {weights} does not apply: leave it out")
    return Topology(name, made) if isinstance(made, np.ndarray) else made


def spec(name: str, options: dict[str, object]) -> str:
    """What one types for this topology: "regular:d=4,seed=1"."""
    return name + ":" * bool(options) + ",".join(f"{key}={value}" for key, value in options.items())
