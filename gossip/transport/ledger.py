"""Who has sent what, and so whether what this rank waits for can still come.

A rank that leaves sends its *last words*: how many messages it has posted to this peer under each tag, and
how many collectives it has started on each channel. So the peer knows exactly, whatever overtakes what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CONTROL = -1  # the control plane, counted like a channel of means


@dataclass(frozen=True)
class LastWords:
    """What a rank that has left had sent to this one: messages by tag, collectives by channel."""

    messages: Mapping[int, int]
    collectives: Mapping[int, int]


class Ledger:
    """The counts of one rank.

    Attributes:
        posted, expected, received: messages by the other rank and tag.
        started, completed: collectives by channel.
    """

    def __init__(self) -> None:
        self.posted, self.expected, self.received = _by_rank(), _by_rank(), _by_rank()
        self.started, self.completed = defaultdict[int, int](int), defaultdict[int, int](int)
        self._words = dict[int, LastWords]()
        self._undecided = set[int]()  # have left, but what this rank waits for may still arrive

    def words_for(self, rank: int) -> dict[str, dict[int, int]]:
        """This rank's last words to `rank`."""
        return {"messages": dict(self.posted[rank]), "collectives": dict(self.started)}

    def hear(self, rank: int, words: Mapping[str, Mapping[str, int]]) -> None:
        """The last words of `rank`, by way of JSON, which turns integer keys into strings."""
        counts = {what: {int(key): n for key, n in by_key.items()} for what, by_key in words.items()}
        self._words[rank] = LastWords(**counts)
        self._undecided.add(rank)

    @property
    def left(self) -> set[int]:
        """The ranks that have sent their last words."""
        return set(self._words)

    def decide(self) -> Iterator[int]:
        """Ranks that have left, once all they sent is here or something will never come; each once."""
        for rank in list(self._undecided):
            if self._in_vain(rank) or self._complete(rank):
                self._undecided.discard(rank)
                yield rank

    def _in_vain(self, rank: int) -> bool:
        words = self._words[rank]
        return any(n > words.messages.get(tag, 0) for tag, n in self.expected[rank].items()) or any(
            n > words.collectives.get(channel, 0) for channel, n in self.started.items() if channel != CONTROL
        )

    def _complete(self, rank: int) -> bool:
        words = self._words[rank]
        return all(self.received[rank][tag] >= n for tag, n in words.messages.items()) and all(
            self.completed[channel] >= n for channel, n in words.collectives.items() if channel != CONTROL
        )

    def absent(self, channel: int, index: int) -> list[int]:
        """The ranks that have left without starting the `index`-th collective, from 1, on `channel`."""
        return [
            rank for rank, words in list(self._words.items()) if words.collectives.get(channel, 0) < index
        ]


def _by_rank() -> defaultdict[int, defaultdict[int, int]]:
    """rank -> tag -> number of messages."""
    return defaultdict(lambda: defaultdict(int))
