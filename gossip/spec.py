"""Components typed on a command line: ``name:key=value,key=value`` becomes an object.

    qsgd:bits=4,block=tensor            name, then options
    torus:4x4, topk:0.01                a first value without a key goes to the first option
    topk:0.01,values=qsgd:bits=4        a codec inside a codec …
    topk:0.01,values=(qsgd:bits=4,block=64)   … in parentheses when it has commas of its own

The annotations of the classes and functions behind the names say what each value must be. Objects work
wherever a spec does.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import networkx as nx
import numpy as np

import topologies
from compressors import CODECS, Compressor
from gossip.algorithms import ALGORITHMS, Algorithm
from gossip.errors import UsageError
from gossip.suggest import nearest
from topologies import FAMILIES, Schedule, Topology, TopologyError

REQUIRED = inspect.Parameter.empty
FIRST = ""
"""The key under which `parse` returns a first value without a key."""

_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*=(.*)", re.DOTALL)
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One option of a component: its Python name, annotated type, default (`REQUIRED` if none) and help."""

    name: str
    type: Any
    default: Any
    help: str
    keyword_only: bool = False

    @property
    def example(self) -> str:
        """``key=value`` to type for this option."""
        plain = self.default not in (REQUIRED, None, "")
        return f"{self.name}={as_typed(self.default) if plain else _sample(self.type, self.name)}"


@dataclass(frozen=True)
class Kind:
    """A family of components: what messages call one, its flag, and the table from names to what makes them.

    A maker is a dataclass, or a function whose first parameter (the number of nodes) is not an option.
    """

    noun: str
    plural: str
    flag: str
    makers: Mapping[str, Callable[..., Any]]

    def select(self, text: str) -> tuple[str, dict[str, Any]]:
        """The name in `text` and its options by parameter name, converted to the annotated types.

        Raises:
            UsageError: the name, an option or a value is none that exists.
        """
        name, given = parse(text, self)
        if name not in self.makers:
            raise self._unknown_name(name, text)
        known = options(self.makers[name])
        values: dict[str, Any] = {}
        for key, value in given.items():
            option = self._option(name, key, value, known, text)
            if option.name in values:
                raise self.error(text, f"{option.name} is given twice")
            try:
                values[option.name] = _convert(value, option.type)
            except ValueError as error:
                problem = f"{option.name}={value} is not {error}"
                raise self.error(text, problem, f"{name}:{option.example}") from None
        for option in known:
            if option.default is REQUIRED and option.name not in values:
                help = f" ({option.help})" if option.help else ""
                raise self.error(text, f"{name} needs {option.name}{help}", f"{name}:{option.example}")
        return name, values

    def make(self, text: str) -> Any:
        """Build the component that `text` names; a constructor's ValueError becomes a `UsageError`."""
        name, values = self.select(text)
        try:
            return self.makers[name](**values)
        except ValueError as error:
            raise self.error(text, str(error)) from None

    def error(self, text: str, problem: str, type_: str = "") -> UsageError:
        """A `UsageError`: what was given, what is wrong, what to type, where to read more."""
        lines = [f"{self.noun} {text!r}: {problem}"]
        if type_:
            lines.append(f"Type for example: {self.flag} {type_}")
        if self.plural:
            lines.append(f"All options: python -m gossip list {self.plural}")
        return UsageError("\n".join(lines))

    def _unknown_name(self, name: str, text: str) -> UsageError:
        problem = f"there is no {self.noun} {name!r}"
        near = nearest(name, self.makers)
        if near:
            problem += f"; did you mean {near!r}?"
        problem += f"\nThere is: {', '.join(sorted(self.makers))}"
        typed = near + text.strip()[len(name) :] if near else next(iter(self.makers), "")
        return self.error(text, problem, typed)

    def _option(self, name: str, key: str, value: str, known: tuple[Option, ...], text: str) -> Option:
        """The option that `key` means; a value without a key means the first one."""
        if key == FIRST:
            found = next((option for option in known if not option.keyword_only), None)
        else:
            found = next((option for option in known if option.name == key.replace("-", "_")), None)
        if found is not None:
            return found
        if not known:
            raise self.error(text, f"{name} has no options", name)
        names = [option.name for option in known]
        if key == FIRST:
            problem, near = f"write which option {value!r} is for", ""
        else:
            problem, near = f"{name} has no option {key!r}", nearest(key, names)
        if near:
            problem += f"; did you mean {near!r}?"
        problem += f"\n{name} has: {', '.join(names)}"
        typed = next((option for option in known if option.name == near), known[0])
        raise self.error(text, problem, f"{name}:{near}={value}" if near else f"{name}:{typed.example}")


COMPRESSORS = Kind("compressor", "compressors", "--compressor", CODECS)
METHODS = Kind("algorithm", "algorithms", "--algorithm", ALGORITHMS)
GRAPHS = Kind("topology", "topologies", "--topology", FAMILIES)


def parse(text: str, kind: Kind) -> tuple[str, dict[str, str]]:
    """Split ``name:key=value,…`` into the name and the values, still text, by key (`FIRST` for one without).

    Commas inside parentheses do not split; parentheses around a whole value are taken off.
    `kind` is only for the message.

    Raises:
        UsageError: no name, unbalanced parentheses, an empty or repeated key, a later value without a key.
    """
    if not isinstance(text, str):
        raise UsageError(f"{kind.noun}: give a spec such as name:key=value, or an object; this is {text!r}")
    name, _, rest = text.strip().partition(":")
    if not name.strip():
        raise kind.error(text, "the name is missing; a spec is name or name:key=value,key=value")
    values: dict[str, str] = {}
    for position, item in enumerate(_split(rest, text, kind) if rest.strip() else ()):
        matched = _KEY.fullmatch(item)
        key, value = matched.groups() if matched else (FIRST, item)
        if not value.strip():
            raise kind.error(text, f"no value in {item.strip()!r}; a spec is name:key=value,key=value")
        if key == FIRST and position:
            raise kind.error(text, f"{item.strip()!r} has no key; only the first value may leave it away")
        if key in values:
            raise kind.error(text, f"{key} is given twice")
        values[key] = _without_parentheses(value.strip())
    return name.strip(), values


def options(maker: Callable[..., Any]) -> tuple[Option, ...]:
    """What can be set on a component, in order.

    Fields of a dataclass that have a default but no help are internal and left out.
    """
    if dataclasses.is_dataclass(maker):
        hints = typing.get_type_hints(maker)
        found = [
            Option(
                field.name,
                hints[field.name],
                REQUIRED if field.default is dataclasses.MISSING else field.default,
                field.metadata.get("help", ""),
                bool(field.kw_only),
            )
            for field in dataclasses.fields(maker)
            if field.init
        ]
        shown = [option for option in found if option.help or option.default is REQUIRED]
        # Options of a base class (such as `every`) come last, as in a call.
        return tuple(sorted(shown, key=lambda option: option.keyword_only))
    hints = typing.get_type_hints(maker)
    _, *parameters = inspect.signature(maker).parameters.values()
    return tuple(Option(p.name, hints.get(p.name, str), p.default, "") for p in parameters)


def make_codec(spec: str | Compressor) -> Compressor:
    """The compressor that `spec` names, or `spec` itself when it is one. Raises `UsageError`."""
    if isinstance(spec, Compressor):
        return spec
    codec: Compressor = COMPRESSORS.make(spec)
    return codec


def make_algorithm(spec: str | Algorithm) -> Algorithm:
    """The algorithm that `spec` names, or `spec` itself when it is one. Raises `UsageError`."""
    if isinstance(spec, Algorithm):
        _check_choices(spec)
        return spec
    algorithm: Algorithm = METHODS.make(spec)
    return algorithm


def _check_choices(made: Algorithm) -> None:
    """What a spec cannot get wrong: options with a few words to choose from."""
    for option in options(type(made)):
        value = getattr(made, option.name)
        if typing.get_origin(option.type) is Literal and value not in (words := typing.get_args(option.type)):
            raise UsageError(
                f"{type(made).__name__}({option.name}={value!r}): choose {' or '.join(map(repr, words))}."
            )


def make_topology(
    spec: str | Topology | Schedule | nx.Graph | np.ndarray, n: int, weights: str = "metropolis"
) -> Topology | Schedule:
    """The topology that `spec` names, on `n` nodes.

    Args:
        spec: a name, a networkx graph on the nodes 0 … n-1, a mixing matrix W (float [n, n]), or a Topology
            or Schedule, which is returned as it is.
        weights: the rule that gives a graph its weights; what has weights already takes no rule.

    Raises:
        UsageError: no such family, rule or option; no such graph on n nodes; no valid W; a rule for a W.
    """
    try:
        if isinstance(spec, nx.Graph | np.ndarray | Topology | Schedule):
            return topologies.weighed(spec, weights, "custom")
        name, values = GRAPHS.select(spec)
        return topologies.build(name, n, weights=weights, **values)
    except TopologyError as error:
        raise GRAPHS.error(spec if isinstance(spec, str) else type(spec).__name__, str(error)) from None


def type_words(hint: Any) -> str:
    """What a value of type `hint` is, for people: "a whole number or text"."""
    return " or ".join(map(_words, _members(hint)))


def as_typed(value: Any) -> str:
    """A default as one would type it."""
    if isinstance(value, Compressor) and ":" in str(value):
        return f"({value})"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _split(rest: str, text: str, kind: Kind) -> list[str]:
    """Split at commas outside parentheses."""
    items, depth, start = [], 0, 0
    for at, character in enumerate(rest):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            raise kind.error(text, "')' closes nothing; check the parentheses")
        if character == "," and depth == 0:
            items.append(rest[start:at])
            start = at + 1
    if depth:
        raise kind.error(text, "')' is missing (in a shell, quote a spec that has parentheses)")
    return [*items, rest[start:]]


def _without_parentheses(value: str) -> str:
    """Take off one pair of parentheses that encloses all of `value`."""
    if not (value.startswith("(") and value.endswith(")")):
        return value
    depth = 0
    for at, character in enumerate(value):
        depth += (character == "(") - (character == ")")
        if depth == 0 and at < len(value) - 1:
            return value
    return value[1:-1].strip()


def _members(hint: Any) -> tuple[Any, ...]:
    """The types in a union, in which a value is tried: None first, text last."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    order = (type(None), bool, int, float)
    return tuple(sorted(members, key=lambda t: order.index(t) if t in order else len(order) + (t is str)))


def _convert(text: str, hint: Any) -> Any:
    """`text` as a value of type `hint`. Raises ValueError with what was expected."""
    for member in _members(hint):
        try:
            return _convert_one(text, member)
        except ValueError:
            continue
    raise ValueError(type_words(hint))


def _convert_one(text: str, hint: Any) -> Any:
    if hint is type(None):
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    if hint in (int, float, str):
        return hint(text)
    if typing.get_origin(hint) is typing.Literal:
        if text not in typing.get_args(hint):
            raise ValueError(text)
        return text
    if isinstance(hint, type) and issubclass(hint, Compressor):
        return make_codec(text)
    raise TypeError(f"an option of type {hint} cannot be given as text")


def _words(hint: Any) -> str:
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    if hint in plain:
        return plain[hint]
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    return "a compressor"


def _sample(hint: Any, name: str) -> str:
    """A value to show for an option without a default."""
    member = next((member for member in _members(hint) if member is not type(None)), hint)
    if typing.get_origin(member) is typing.Literal:
        return str(typing.get_args(member)[0])
    if isinstance(member, type) and issubclass(member, Compressor):
        return "qsgd"
    return {int: "4", float: "0.1", bool: "true"}.get(member, name.upper())
