"""What all ranks must have alike, compared before anything depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gossip.errors import UsageError
from gossip.transport.base import Transport

SHOWN = 60
"""Characters of a value that an error shows."""


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


def _groups(values: list[Any]) -> list[str]:
    """``rank 0: ring``, ``ranks 1 to 3: torus``: who has what."""
    if all(isinstance(value, list) for value in values):
        values = _at_first_difference(values)
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(repr(value), []).append(rank)
    return [f"{_name(ranks)}: {value[:SHOWN]}" for value, ranks in holders.items()]


def _at_first_difference(lists: list[list[Any]]) -> list[Any]:
    for i in range(max(map(len, lists))):
        items = [repr(each[i]) if i < len(each) else "nothing" for each in lists]
        if len(set(items)) > 1:
            return [each[i] if i < len(each) else None for each in lists]
    return list(lists)


def _name(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
