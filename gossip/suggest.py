"""The word that was probably meant: for the messages about everything that can be mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that `word` was probably meant to be, or ``""``."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("_", "-"), by_lower, n=1)
    close = close or difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else ""
