"""A stream of tokens as contiguous batches: columns that are read side by side, a window at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gossip.errors import UsageError
from gossip.flat import even_parts
from gossip.shard import Cursor

NO_TARGET = -100
"""Stands where a column has ended: `torch.nn.functional.cross_entropy` leaves it out."""


def columns(tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, int64 [T, count], of the stream `tokens` (int64 [N]) cut into `count` pieces.

    A target is the token after its input. The N - 1 pairs are cut into contiguous columns, in order, whose
    lengths differ by at most one; the shorter ones end with `NO_TARGET`. Every pair is in exactly one place.
    """
    pairs = len(tokens) - 1
    x = torch.zeros(-(-pairs // count), count, dtype=torch.int64)
    y = torch.full_like(x, NO_TARGET)
    for k, at in enumerate(even_parts(pairs, count)):
        length = at.stop - at.start
        x[:length, k], y[:length, k] = tokens[at], tokens[1:][at]
    return x, y


class Windows:
    """A rank's batches ``(x, y)``, int64 [bptt, b], of consecutive tokens; each ``iter()`` is one epoch.

    The stream is cut into size · b columns, of which rank r reads the r-th b: the ranks' parts are disjoint,
    cover the stream, and have the same number of windows. A window begins where the one before has ended, so
    what a recurrent model remembers can be handed on. A last window of a single position is joined to the
    one before: no rank then ever has a window without a target.

    Attributes:
        memory: what the model remembers after the last window; whoever trains puts it here. None in the
            beginning of an epoch. It is part of `state_dict`.

    Args:
        tokens: int64 [N], the whole stream, the same on every rank.
        rank, size: this rank and the number of ranks.
        batch_size: columns b of this rank.
        bptt: positions per window, through which gradients flow back.

    Raises:
        UsageError: fewer pairs than columns.
    """

    def __init__(
        self,
        tokens: Tensor,
        rank: int,
        size: int,
        batch_size: int,
        bptt: int,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        count = size * batch_size
        if len(tokens) <= count:
            raise UsageError(
                f"the training text has {len(tokens)} tokens, too few for {size} nodes x --batch-size "
                f"{batch_size} columns, which need {count + 1}: lower --batch-size, or take a longer text"
            )
        own = slice(rank * batch_size, (rank + 1) * batch_size)
        x, y = columns(tokens, count)
        self.x, self.y = (t[:, own].contiguous().to(device) for t in (x, y))
        starts = list(range(0, len(x), bptt))
        if len(starts) > 1 and len(x) - starts[-1] == 1:
            starts.pop()
        self._bounds = list(pairwise([*starts, len(x)]))
        self._cursor = Cursor()
        self.memory: tuple[Tensor, ...] | None = None

    def __len__(self) -> int:
        """Windows per epoch, the same on every rank."""
        return len(self._bounds)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        position = self._cursor.begin()["position"]
        if position == 0:
            self.memory = None
        for start, end in self._bounds[position:]:
            self._cursor.position += 1
            yield self.x[start:end], self.y[start:end]
        self._cursor.end()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, and the memory there."""
        memory = None if self.memory is None else [part.clone() for part in self.memory]
        return {**self._cursor.state_dict(), "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter()`` goes on after the windows that `state` counts, bit for bit."""
        self._cursor.load_state_dict({"epoch": state["epoch"], "position": state["position"]})
        memory = state["memory"]
        self.memory = None if memory is None else tuple(part.to(self.x.device) for part in memory)
