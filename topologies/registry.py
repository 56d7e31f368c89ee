"""The table of graph families, and what each says about itself.

A new family is one function: take n and keyword options, return a networkx graph on the nodes 0 … n-1.

    @family("wheel")
    def wheel(n: int) -> nx.Graph:
        \"\"\"A ring whose nodes all know rank 0.\"\"\"          # the summary that `gossip list` shows
        return nx.wheel_graph(n)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt

from topologies.errors import TopologyError, unknown
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


@dataclass(frozen=True)
class Option:
    """A keyword option of a family; `default` is None when it must be given."""

    name: str
    type: typing.Any
    default: object
    required: bool


@dataclass(frozen=True)
class Description:
    """A family as `gossip list` shows it: summary is its docstring's first line, details the rest."""

    name: str
    summary: str
    details: str
    options: tuple[Option, ...]


def describe(name: str) -> Description:
    """What the family `name` is and takes. Raises TopologyError for an unknown name."""
    if name not in FAMILIES:
        raise unknown("topology", name, FAMILIES)
    function = FAMILIES[name]
    hints = typing.get_type_hints(function)
    _, *parameters = inspect.signature(function).parameters.values()  # without n
    options = []
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        options.append(Option(parameter.name, hints.get(parameter.name, object), default, required))
    summary, _, details = inspect.cleandoc(function.__doc__ or "").partition("\n")
    return Description(name, summary, details.strip(), tuple(options))
