"""Communication graphs, their mixing matrices, and schedules of them.

>>> from topologies import build
>>> ring = build("ring", 8)
>>> ring.in_neighbors(0), round(ring.spectral_gap, 4)
((1, 7), 0.1953)
"""

from __future__ import annotations

# Imported for what they register.
from topologies import classic, exponential, files, grids, random_graphs, social  # noqa: F401
from topologies.errors import TopologyError
from topologies.make import build, weighed
from topologies.matrix import MixingMatrix, Topology
from topologies.registry import FAMILIES, family
from topologies.schedule import Schedule
from topologies.weights import RULES

__all__ = [
    "FAMILIES",
    "RULES",
    "MixingMatrix",
    "Schedule",
    "Topology",
    "TopologyError",
    "build",
    "family",
    "weighed",
]
