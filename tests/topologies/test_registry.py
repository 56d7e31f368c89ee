"""The table of families and what it tells about itself."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import networkx as nx
import pytest

import topologies
from topologies import FAMILIES, RULES, TopologyError, build, describe, family

NAMES = {
    *("ring", "chain", "star", "complete", "torus", "hypercube", "exponential", "tree"),
    *("regular", "erdos-renyi", "small-world", "davis", "file", "one-peer"),
}


def test_the_documented_names_exist() -> None:
    assert set(FAMILIES) >= NAMES
    assert set(RULES) >= {"metropolis", "max-degree", "lazy", "best-constant"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_descriptions(name: str) -> None:
    description = describe(name)
    assert description.name == name
    assert description.summary.endswith((".", ";", ")")) and len(description.summary) < 110
    for option in description.options:
        assert option.type in (int, float, str)
        assert option.required or isinstance(option.default, option.type)
        assert option.name in (FAMILIES[name].__doc__ or "") or option.name in ("seed", "path")


def test_options_have_types_and_defaults() -> None:
    by_name = {option.name: option for option in describe("small-world").options}
    assert {key: (option.type, option.default) for key, option in by_name.items()} == {
        "k": (int, 0),
        "p": (float, 0.1),
        "seed": (int, 0),
    }
    (path,) = describe("file").options
    assert path.required and path.name == "path"
    assert "2110.13363" in describe("exponential").details


def test_names_say_what_was_asked_for() -> None:
    assert build("ring", 8).name == "ring"
    assert build("torus", 8, shape="2x4").name == "torus:shape=2x4"
    assert build("regular", 8, d=3, seed=1).name == "regular:d=3,seed=1"


def test_a_new_family_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "wheel", nx.wheel_graph)  # so that the table is put back afterwards
    del FAMILIES["wheel"]

    @family("wheel")
    def wheel(n: int, *, rim: bool = True) -> nx.Graph:
        """A ring whose nodes all know rank 0."""
        return nx.wheel_graph(n) if rim else nx.star_graph(n - 1)

    assert describe("wheel").summary == "A ring whose nodes all know rank 0."
    assert build("wheel", 6).max_degree == 5
    assert build("wheel", 6, rim=False).fingerprint() == build("star", 6).fingerprint()
    with pytest.raises(TopologyError, match="there is a family 'wheel' already"):
        family("wheel")(wheel)
    with pytest.raises(TopologyError, match="wheel: rim must be of type bool, given 1"):
        build("wheel", 6, rim=1)


def test_imports_are_numpy_networkx_and_the_standard_library() -> None:
    allowed = {"numpy", "networkx", "topologies", *sys.stdlib_module_names}
    for path in Path(topologies.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(module.split(".")[0] in allowed for module in modules), path
