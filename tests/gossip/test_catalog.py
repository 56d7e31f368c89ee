"""``python -m gossip list``: what a docstring says is shown once."""

from __future__ import annotations

import networkx as nx
import pytest

from gossip.catalog import catalog
from topologies import FAMILIES


def test_a_first_paragraph_of_two_lines_is_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    def wheel(n: int, *, rim: bool = True) -> nx.Graph:
        """A ring whose nodes all know rank 0,
        or a star.

        Like a bicycle's,
        mostly.
        """
        return nx.wheel_graph(n) if rim else nx.star_graph(n - 1)

    monkeypatch.setitem(FAMILIES, "wheel", wheel)
    entry = next(e for e in catalog("topologies").split("\n\n") if e.startswith("wheel: "))
    assert entry.splitlines()[:4] == [
        "wheel: A ring whose nodes all know rank 0, or a star.",
        "    rim=true                 true or false",
        "    Like a bicycle's,",
        "    mostly.",
    ]
    assert entry.count("or a star") == 1
