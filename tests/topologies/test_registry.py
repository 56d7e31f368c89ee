"""The table of families and what it tells about itself."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import networkx as nx
import pytest

import topologies
from topologies import FAMILIES, RULES, TopologyError, build, family

NAMES = {
    *("ring", "chain", "star", "complete", "torus", "hypercube", "exponential", "tree"),
    *("regular", "erdos-renyi", "small-world", "davis", "file", "one-peer"),
}


def test_the_documented_names_exist() -> None:
    assert set(FAMILIES) >= NAMES
    assert set(RULES) >= {"metropolis", "max-degree", "lazy", "best-constant"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_descriptions(name: str) -> None:
    text = inspect.getdoc(FAMILIES[name]) or ""
    summary = text.partition("\n")[0]
    assert summary.endswith((".", ";", ")")) and len(summary) < 110
    _, *options = inspect.signature(FAMILIES[name], eval_str=True).parameters.values()
    for option in options:
        assert option.annotation in (int, float, str)
        assert isinstance(option.default, option.annotation) or option.default is inspect.Parameter.empty
        assert option.name in text or option.name in ("seed", "path")


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

    assert build("wheel", 6).max_degree == 5
    assert build("wheel", 6, rim=False).fingerprint() == build("star", 6).fingerprint()
    with pytest.raises(TopologyError, match="there is a family 'wheel' already"):
        family("wheel")(wheel)
    with pytest.raises(TopologyError, match=r"wheel: got an unexpected .*'rom'; its options: rim"):
        build("wheel", 6, rom=False)


def test_imports_are_numpy_networkx_and_the_standard_library() -> None:
    allowed = {"numpy", "networkx", "topologies", *sys.stdlib_module_names}
    for path in Path(topologies.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(module.split(".")[0] in allowed for module in modules), path
