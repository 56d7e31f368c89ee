"""What all ranks must have alike, compared before anything depends on it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gossip.errors import UsageError
from gossip.transport.base import Transport, as_bytes

SHOWN, BEFORE = 60, 20
"""Characters of a value that an error shows, and how many of them may lie before the first difference."""


def agree(transport: Transport, fields: Mapping[str, Any]) -> None:
    """Collective: raise on every rank if some field differs between ranks.

    Args:
        fields: name -> a value that is the same wherever its `repr` is. Of lists only the first item that
            differs is shown.

    Raises:
        UsageError: names the field, the ranks, and what each of them has.
    """
    digests = {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in fields.items()}
    everyone = transport.allgather(digests)
    for name, value in fields.items():
        if any(theirs[name] != everyone[0][name] for theirs in everyone):
            groups = "; ".join(_groups(transport.allgather(value)))
            raise UsageError(
                f"the ranks disagree on {name} ({groups}). Start all of them with the same options."
            )


def digest(x: Tensor) -> str:
    """Of the values of `x`: the same on two ranks where they are bitwise the same."""
    return hashlib.sha256(as_bytes(x.detach().cpu()).numpy().data).hexdigest()


def _groups(values: Sequence[Any]) -> list[str]:
    """``rank 0: 'ring'``, ``ranks 1 to 3: 'torus'``: who has what."""
    lists = all(isinstance(value, list) for value in values)
    shown = _at_first_difference(values) if lists else [repr(value) for value in values]
    columns = zip(*shown, strict=False)
    alike = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    start = max(0, alike - BEFORE) if max(map(len, shown)) > SHOWN else 0
    holders: dict[str, list[int]] = {}
    for rank, text in enumerate(shown):
        holders.setdefault(text, []).append(rank)
    before = "…" if start else ""
    return [f"{_name(ranks)}: {before}{text[start : start + SHOWN]}" for text, ranks in holders.items()]


def _at_first_difference(lists: Sequence[list[Any]]) -> list[str]:
    texts = ([repr(item) for item in each] for each in lists)
    rows = itertools.zip_longest(*texts, fillvalue="nothing")
    return next(list(row) for row in rows if len(set(row)) > 1)


def _name(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
