"""The one error of this package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TopologyError(ValueError):
    """A graph, matrix or option that cannot be used; the message says what was given and what fits."""


def unknown(kind: str, given: str, known: Iterable[str]) -> TopologyError:
    """The error for a misspelt name: the nearest known one, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return TopologyError(f"unknown {kind} {given!r};{hint} there are: {', '.join(names) or 'none'}")
