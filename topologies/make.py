"""From a family's name and options to a Topology or a Schedule."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from topologies.errors import TopologyError, unknown
from topologies.matrix import Topology
from topologies.registry import FAMILIES, Description, Option, describe
from topologies.schedule import Schedule
from topologies.weights import RULES

ABSTRACT: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real}


def build(name: str, n: int, weights: str = "metropolis", **options: object) -> Topology | Schedule:
    """The topology of family `name` on n nodes, weighed by the rule `weights`.

    name: a key of FAMILIES; options: its keyword options, seeds included, with their Python types.
    The result is a pure function of the arguments (and of the file, if any): every rank can build its own.
    Raises TopologyError when a name is unknown, an option is missing or unfit, or n nodes have no such graph.
    """
    description = describe(name)
    if weights not in RULES:
        raise unknown("weight rule", weights, RULES)
    if not isinstance(n, int) or n < 1:
        raise TopologyError(f"{name}: cannot have {n!r} nodes; n must be a whole number, 1 or more")
    options = _checked(description, options)
    made = FAMILIES[name](n, **options)
    title = spec(name, options)
    if isinstance(made, (np.ndarray, Schedule)) and weights != "metropolis":
        raise TopologyError(f"{title} has its own weights, the rule {weights} does not apply: leave it out")
    if isinstance(made, Schedule):
        return made
    if isinstance(made, np.ndarray):
        return Topology(title, made)
    return Topology.from_graph(made, weights, title)


def spec(name: str, options: dict[str, object]) -> str:
    """What one types for this topology: "regular:d=4,seed=1"."""
    return name + ":" * bool(options) + ",".join(f"{key}={value}" for key, value in options.items())


def _checked(description: Description, options: dict[str, object]) -> dict[str, Any]:
    """The options as plain Python values of their declared types."""
    known = {option.name: option for option in description.options}
    for key in options:
        if key not in known:
            raise unknown(f"option of {description.name}", key, known)
    for option in description.options:
        if option.required and option.name not in options:
            raise TopologyError(f"{description.name} needs {option.name}: {_example(description, option)}")
    return {key: _typed(description, known[key], value) for key, value in options.items()}


def _typed(description: Description, option: Option, value: object) -> Any:
    # numpy's numbers are welcome, but random.Random takes only Python's; True is not a number here.
    wanted = ABSTRACT.get(option.type, option.type)
    if isinstance(value, bool) == (option.type is bool) and isinstance(value, wanted):
        return option.type(value) if option.type in ABSTRACT else value
    raise TopologyError(
        f"{description.name}: {option.name} must be of type {getattr(option.type, '__name__', option.type)},"
        f" given {value!r}; type for example {_example(description, option)}"
    )


def _example(description: Description, option: Option) -> str:
    value = option.name.upper() if option.default in (None, "") else option.default
    return f"{description.name}:{option.name}={value}"
