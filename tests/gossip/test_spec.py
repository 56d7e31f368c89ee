"""Specs: what is typed becomes the object that was meant, or one message that says what to type."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any, Literal

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import topologies
from compressors import CODECS, Compressor, Identity, option
from gossip.algorithms import ALGORITHMS
from gossip.errors import UsageError
from gossip.spec import (
    COMPRESSORS,
    FIRST,
    GRAPHS,
    METHODS,
    REQUIRED,
    Kind,
    make_algorithm,
    make_codec,
    make_topology,
    options,
    parse,
)

CODEC = Identity()


@dataclass(frozen=True)
class Thing:
    """One option of every type."""

    size: int = option(1, "how large")
    share: float = option(0.5, "how much")
    exact: bool = option(False, "whether")
    label: str = option("a", "what it is called")
    block: int | str = option(512, "a number or tensor")
    norm: Literal["max", "l2"] = option("max", "which norm")
    gamma: float | None = option(None, "step")
    values: Compressor = field(default=CODEC, metadata={"help": "codec for the values"})
    internal: int = 0

    def __post_init__(self) -> None:
        if self.size > 9:
            raise ValueError(f"size={self.size} given; 0-9 fits")


@dataclass(frozen=True)
class Needy:
    """Needs its option."""

    ratio: float = field(metadata={"help": "share that is kept"})


THINGS = Kind("thing", "things", "--thing", {"thing": Thing})

words = st.text(string.ascii_lowercase, min_size=1, max_size=6)
plain_values = st.text(string.ascii_letters + string.digits + ".:/+-", min_size=1, max_size=8)


@given(words, st.dictionaries(words, plain_values, max_size=4), st.one_of(st.none(), plain_values))
def test_parse_inverts_writing(name: str, values: dict[str, str], first: str | None) -> None:
    items = [f"{key}={value}" for key, value in values.items()]
    if first is not None:
        items.insert(0, first)
        values = {FIRST: first, **values}
    text = f"{name}:{','.join(items)}" if items else name
    assert parse(text, THINGS) == (name, values)
    for key, value in values.items():
        assert parse(f"outer:{key or 'k'}=({text})", THINGS)[1] == {key or "k": text}, value


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("topk:ratio=0.01,values=qsgd:bits=4", "topk", {"ratio": "0.01", "values": "qsgd:bits=4"}),
        ("topk:0.1,values=(qsgd:bits=4,block=64)", "topk", {FIRST: "0.1", "values": "qsgd:bits=4,block=64"}),
        ("per-tensor:topk:ratio=0.1", "per-tensor", {FIRST: "topk:ratio=0.1"}),
        ("a:b=(c:d=(e:f=1,g=2),h=3)", "a", {"b": "c:d=(e:f=1,g=2),h=3"}),
        ("file:/tmp/a=b.npy", "file", {FIRST: "/tmp/a=b.npy"}),
        ("file:/tmp/[a.npy", "file", {FIRST: "/tmp/[a.npy"}),
        ("x:k=(a)(b)", "x", {"k": "(a)(b)"}),
    ],
)
def test_parse_leaves_nested_commas_and_equal_signs_alone(
    text: str, name: str, values: dict[str, str]
) -> None:
    assert parse(text, THINGS) == (name, values)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("thing:7", "size", 7),
        ("thing:share=1", "share", 1.0),
        ("thing:share=1e-3", "share", 1e-3),
        ("thing:exact=yes", "exact", True),
        ("thing:exact=FALSE", "exact", False),
        ("thing:label=4", "label", "4"),
        ("thing:block=64", "block", 64),
        ("thing:block=tensor", "block", "tensor"),
        ("thing:norm=l2", "norm", "l2"),
        ("thing:gamma=0.4", "gamma", 0.4),
        ("thing:gamma=none", "gamma", None),
        ("thing:values=identity", "values", Identity()),
        (" thing: size = 3 ", "size", 3),
    ],
)
def test_values_take_the_annotated_type(text: str, field: str, value: object) -> None:
    found = getattr(THINGS.make(text), field)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("kind", [COMPRESSORS, METHODS], ids=lambda kind: kind.plural)
def test_what_a_component_prints_makes_it_again(kind: Kind) -> None:
    made = 0
    for name, maker in kind.makers.items():
        if all(option.default is not REQUIRED for option in options(maker)):
            component = maker()
            assert kind.make(str(component)) == component == kind.make(name), name
            made += 1
    assert made


def test_objects_pass_through() -> None:
    codec, method, ring = Identity(), ALGORITHMS["dcd"](), topologies.build("ring", 4)
    assert make_codec(codec) is codec
    assert make_algorithm(method) is method
    assert make_topology(ring, 4) is ring
    W = ring.at(1).W
    assert np.array_equal(make_topology(W, 4).at(1).W, W)
    assert np.allclose(make_topology(nx.cycle_graph(4), 4).at(1).W, W)


def test_topology_options_and_weights() -> None:
    assert np.array_equal(make_topology("torus:2x4", 8).at(1).W, make_topology("torus:shape=2x4", 8).at(1).W)
    lazy = make_topology("ring", 8, "lazy").at(1).W
    assert np.allclose(lazy, (np.eye(8) + make_topology("ring", 8).at(1).W) / 2)
    one, same, other = (make_topology(f"erdos-renyi:p=0.5,seed={s}", 8).fingerprint() for s in (1, 1, 2))
    assert one == same != other


def _given(kind: Kind, text: Any) -> Any:
    return make_topology(text, 8) if kind is GRAPHS else kind.make(text)


MISTAKES = [
    (COMPRESSORS, "qsdg:bits=8", ["'qsdg'", "did you mean 'qsgd'", "identity"]),
    (COMPRESSORS, "QSGD", ["did you mean 'qsgd'"]),
    (COMPRESSORS, "zzz", ["no compressor 'zzz'", "qsgd"]),
    (COMPRESSORS, "qsgd:bit=8", ["no option 'bit'", "did you mean 'bits'", "norm"]),
    (COMPRESSORS, "qsgd:bits=many", ["bits=many", "a whole number"]),
    (COMPRESSORS, "qsgd:bits=77", ["bits=77"]),
    (COMPRESSORS, "qsgd:bits=8,bits=4", ["bits is given twice"]),
    (COMPRESSORS, "qsgd:8,bits=4", ["bits is given twice"]),
    (COMPRESSORS, "qsgd:bits=", ["no value in 'bits='"]),
    (COMPRESSORS, "qsgd:bits=8,,norm=max", ["no value"]),
    (COMPRESSORS, "qsgd:bits=8,max", ["'max' has no key"]),
    (COMPRESSORS, "qsgd:bits=(8", ["')' is missing"]),
    (COMPRESSORS, "qsgd:bits=8)", ["closes nothing"]),
    (COMPRESSORS, "identity:bits=8", ["identity has no options"]),
    (COMPRESSORS, "", ["the name is missing"]),
    (METHODS, "dcdd", ["did you mean 'dcd'"]),
    (METHODS, "dcd:every=0", ["every=0"]),
    (METHODS, "dcd:4", ["which option '4' is for", "every"]),
    (METHODS, "dpsgd:order=sideways", ["order=sideways"]),
    (GRAPHS, "rign", ["did you mean 'ring'"]),
    (GRAPHS, "torus:3x3", ["torus:3x3", "8 ranks"]),
    (GRAPHS, "file", ["needs path"]),
    (GRAPHS, "erdos-renyi:p=high", ["a number"]),
    (THINGS, "thing:norm=l3", ["norm=l3", "max or l2"]),
    (THINGS, "thing:block-size=3", ["'block-size'", "did you mean 'block'"]),
    (THINGS, "thing:exact=perhaps", ["true or false"]),
    (THINGS, "thing:internal=3", ["no option 'internal'"]),
    (THINGS, "thing:values=idenity", ["did you mean 'identity'"]),
    (THINGS, "thing:size=10", ["0-9 fits"]),
]


@pytest.mark.parametrize(("kind", "text", "expected"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_gets_one_message_with_what_to_type(kind: Kind, text: str, expected: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        _given(kind, text)
    message = str(caught.value)
    for part in [*expected, "python -m gossip list"]:
        assert part in message
    assert caught.value.exit_code == 2
    # What the message says to type is no mistake of its own (a file that it stands in for may be missing).
    for line in message.splitlines():
        if line.startswith("Type for example:") and "PATH" not in line:
            flag, typed = line.removeprefix("Type for example:").split()
            _given({"--compressor": COMPRESSORS, kind.flag: kind}[flag], typed)


def test_required_option() -> None:
    needy = Kind("thing", "things", "--thing", {"needy": Needy})
    with pytest.raises(UsageError, match=r"needs ratio \(share that is kept\)(.|\n)*--thing needy:ratio=0.1"):
        needy.make("needy")


def test_unknown_weights() -> None:
    for graph in ("ring", nx.cycle_graph(4)):
        with pytest.raises(UsageError, match=r"did you mean 'metropolis'(.|\n)*gossip list topologies"):
            make_topology(graph, 4, "metropolys")


@pytest.mark.parametrize("rule", ["lazy", "metropolys"])
def test_what_has_weights_of_its_own_takes_no_rule(rule: str) -> None:
    ring = make_topology("ring", 4)
    for weighed in (ring, ring.at(1).W, "one-peer", make_topology("one-peer", 4)):
        with pytest.raises(UsageError, match=f"has its own weights, the rule {rule} does not apply"):
            make_topology(weighed, 4, rule)


@pytest.mark.parametrize("made", [make_codec, make_algorithm, lambda spec: make_topology(spec, 4)])
def test_neither_text_nor_object(made: Any) -> None:
    with pytest.raises(UsageError, match="an object; this is 8"):
        made(8)


def test_every_option_has_help_or_a_type() -> None:
    for kind in (COMPRESSORS, METHODS):
        for name, maker in kind.makers.items():
            for opt in options(maker):
                assert opt.help, f"{name}: option {opt.name} has no help"
    assert set(CODECS) == set(COMPRESSORS.makers)
