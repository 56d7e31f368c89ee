"""Ranks that differ are told in what, and which of them."""

from __future__ import annotations

from typing import Any

import pytest

import gossip
from gossip.agreement import agree
from gossip.errors import UsageError


def told(*values: Any) -> str:
    """What ranks with these values are told."""
    with pytest.raises(UsageError) as caught:
        gossip.launch(
            lambda: agree(gossip.world(), {"same": 1, "field": values[gossip.world().rank]}), len(values)
        )
    return str(caught.value)


def test_nothing_is_said_where_all_have_the_same() -> None:
    gossip.launch(lambda: agree(gossip.world(), {"a": 1, "b": ["x", ("y", 2.0)], "c": None}), 3)


def test_who_has_what() -> None:
    assert "disagree on field (ranks 0, 2: 1; rank 1: 2)." in told(1, 2, 1)
    assert "(ranks 0 to 2: 'a'; rank 3: None)" in told("a", "a", "a", None)


def test_of_lists_the_first_difference() -> None:
    assert "(rank 0: ('b', 2); rank 1: ('b', 3))" in told(
        [("a", 1), ("b", 2)], [("a", 1), ("b", 3), ("c", 4)]
    )
    assert "(rank 0: nothing; rank 1: 'b')" in told(["a"], ["a", "b"])


def test_long_values_are_cut_around_the_first_difference() -> None:
    long = "x" * 100
    said = told(f"{long}a{long}", f"{long}b{long}")
    assert f"rank 0: …{'x' * 20}a{'x' * 39}; rank 1: …{'x' * 20}b{'x' * 39})" in said
