"""How Slim-DP's values travel: shards, their messages, and a node's side of a round as worker and owner.

By round and shard, from each worker but the owner, and back (compressors/keyed.py):

    push    signature | the explorer's keys, unless they come from the seed | values at core, then explorer
    full    signature | the same keys                                       | all values of the shard
    pull    signature |                                                     | values at core, then explorer
    core    signature | the keys of the new core                            |         after a full push
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from compressors import Compressor, PayloadError
from compressors.keyed import Keyed, signature
from compressors.randk import random_indices
from gossip.algorithms.exchange import others
from gossip.effects import Effect, Expect, Message, Node, message_key
from gossip.errors import StaleKeysError

if TYPE_CHECKING:
    from gossip.algorithms.base import State

PUSH, PULL, CORE = 0, 1, 2  # slots
EXPLORER = 1
"""Sets the keys of the explorers' draws apart from those of the codecs' noise."""


@dataclass(frozen=True)
class Shard:
    """What one node owns of a bucket.

    Attributes:
        at: its place in the bucket.
        core, explorer: how many of its values every worker exchanges in a round.
        values: the codec of the values.
        keys_travel: whether a push names the explorer's keys.
    """

    at: slice
    core: int
    explorer: int
    values: Compressor
    keys_travel: bool

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self.at.stop - self.at.start)

    @property
    def chosen(self) -> int:
        """How many values a worker exchanges in a round."""
        return self.core + self.explorer

    def pushed(self, full: bool) -> int:
        """How many values a push holds."""
        return self.size if full else self.chosen

    def push(self, full: bool) -> Keyed:
        """What makes a push of the values."""
        codec = self.values.for_segments([self.pushed(full)])
        return Keyed(codec, self.explorer if self.keys_travel else 0)

    def pull(self) -> Keyed:
        """What makes a pull of the values."""
        return Keyed(self.values.for_segments([self.chosen]))

    def tell_core(self) -> Keyed:
        """What makes the message of the new core, which has no values."""
        return Keyed(count=self.core)


Shards = Mapping[int, Shard]
"""By owner. A bucket with fewer values than there are nodes has fewer shards."""


def expects(shards: Shards, full: bool, node: Node) -> Iterator[Expect]:
    """The messages of a round."""
    mine = shards.get(node.rank)
    for j in others(node):
        if mine:
            yield Expect(j, slot=PUSH, codec=mine.push(full), size=mine.pushed(full))
        if j in shards:
            yield Expect(j, slot=PULL, codec=shards[j].pull(), size=shards[j].chosen)
            if full:
                yield Expect(j, slot=CORE, codec=shards[j].tell_core(), size=0)


def sent(shards: Shards, full: bool, rank: int, n: int) -> int:
    """Bytes that `rank` of n nodes sends in a round (at most, if the codec's messages vary in length)."""
    total = sum(s.push(full).max_bytes(s.pushed(full)) for k, s in shards.items() if k != rank)
    if rank in shards:
        s = shards[rank]
        back = s.pull().max_bytes(s.chosen) + (s.tell_core().max_bytes(0) if full else 0)
        total += (n - 1) * back
    return total


def explorer(core: Tensor, size: int, count: int, key: int) -> Tensor:
    """`count` of 0 … size−1 that are not in `core` (int64, ascending), uniformly at random from the key.

    int64 [count], ascending. Takes O(size) time: two sorted lists are merged.
    """
    places = random_indices(size - core.numel(), count, key).to(core.device)  # among the others
    before = core - torch.arange(core.numel(), device=core.device)  # others below each key of the core
    return places + torch.searchsorted(before, places, right=True)


class Round:
    """One node's side of a round: as a worker of all shards, and as the owner of one.

    Args:
        full: whether all values are pushed.
        scale: what pushed values are multiplied by when they have been decoded.
        state: holds `core` and `signature` by owner, and `w`, the own shard of w̄.

    The worker's T_i is drawn at once: it depends on nothing that the round brings.
    """

    def __init__(self, shards: Shards, full: bool, scale: float, state: State, node: Node) -> None:
        self._shards, self._full, self._scale = shards, full, scale
        self._state, self._node = state, node
        self._explorer = {k: self._draw(node.rank, k) for k in shards}
        self._keys = {k: torch.cat([state["core"][k], self._explorer[k]]) for k in shards}  # T_i, by owner
        self._asked: dict[int, Tensor] = {}  # T_j on the own shard, by worker

    def _draw(self, worker: int, owner: int) -> Tensor:
        start, shard, node = time.perf_counter(), self._shards[owner], self._node
        key = message_key(node.seed, worker, node.t, node.bucket, owner, EXPLORER)
        keys = explorer(self._state["core"][owner], shard.size, shard.explorer, key)
        node.stats.spent("encode", start, node.label)
        return keys

    def _places(self, keys: Tensor) -> Tensor | slice:
        return slice(None) if self._full else keys

    def push(self, delta: Tensor) -> dict[int, Tensor]:
        """Send all owners their part of delta, float32 [n_bucket]; by owner, what it will add."""
        arriving = {}
        for k, shard in self._shards.items():
            values = delta[shard.at][self._places(self._keys[k])]
            if k != self._node.rank:
                told = self._explorer[k] if shard.keys_travel else None
                codec = shard.push(self._full).of(self._signature(k), told)
                values = self._node.send(values, to=(k,), slot=PUSH, codec=codec).mul_(self._scale)
            arriving[k] = values
        return arriving

    def take_out(self, e: Tensor, arriving: Mapping[int, Tensor]) -> None:
        """Subtract from e, float32 [n_bucket], in place, what was pushed."""
        for k, shard in self._shards.items():
            e[shard.at][self._places(self._keys[k])] -= arriving[k]

    def collect(self, arriving: Mapping[int, Tensor]) -> Generator[Effect, Any, Tensor]:
        """The sum of all workers' pushes to the own shard, in rank order: float32 [size]."""
        total, rank = torch.zeros_like(self._state["w"]), self._node.rank
        for j in range(self._node.size if rank in self._shards else 0):
            if j == rank:
                self._asked[j], values = self._keys[j], arriving[j]
            else:
                message = (yield self._node.receive((j,), slot=PUSH))[j]
                self._check(message, rank, j)
                self._asked[j] = self._keys_of(message, j)
                values = message.decoded().mul_(self._scale)
            total[self._places(self._asked[j])] += values
        return total

    def _keys_of(self, message: Message, worker: int) -> Tensor:
        shard = self._shards[self._node.rank]
        if shard.keys_travel:
            told = shard.push(self._full).keys_of(message.payload, shard.size).to(self._node.device)
        else:
            told = self._draw(worker, self._node.rank)
        return torch.cat([self._state["core"][self._node.rank], told])

    def pushers(self) -> Tensor:
        """How many workers have pushed each value of the own shard, at least 1: float32 [size]."""
        count = torch.zeros_like(self._state["w"])
        for keys in self._asked.values():
            count[self._places(keys)] += 1
        return count.clamp_(min=1)

    def answer(self) -> None:
        """Send every worker w̄ where it has asked for it."""
        rank = self._node.rank
        for j in others(self._node) if rank in self._shards else ():
            codec = self._shards[rank].pull().of(self._signature(rank))
            self._node.send(self._state["w"][self._asked[j]], to=(j,), slot=PULL, codec=codec)

    def pull(self, x: Tensor) -> Generator[Effect, Any, None]:
        """x ← w̄ on T_i, in place."""
        for k, shard in self._shards.items():
            if k == self._node.rank:
                values = self._state["w"][self._keys[k]]
            else:
                message = (yield self._node.receive((k,), slot=PULL))[k]
                self._check(message, k, k)
                values = message.decoded()
            x[shard.at][self._keys[k]] = values

    def renew_core(self, keys: Tensor) -> Generator[Effect, Any, None]:
        """Tell all others the core of the own shard, int64, ascending, and learn theirs."""
        node = self._node
        if node.rank in self._shards:
            signed = signature(keys)
            codec = self._shards[node.rank].tell_core().of(signed, keys)
            node.send(keys.new_empty(0, dtype=torch.float32), others(node), slot=CORE, codec=codec)
            self._remember(node.rank, keys, signed)
        for k in others(node):
            if k in self._shards:
                codec = self._shards[k].tell_core()
                payload = (yield node.receive((k,), slot=CORE))[k].payload
                keys, signed = codec.keys_of(payload, self._shards[k].size), codec.signature_of(payload)
                if signature(keys) != signed:
                    raise PayloadError(f"keyed: the keys of rank {k}'s new core are not those it has signed")
                self._remember(k, keys.to(node.device), signed)

    # -- the list of keys that both sides hold -----------------------------------------------------------

    def _remember(self, owner: int, keys: Tensor, signed: int) -> None:
        self._state["core"][owner].copy_(keys)
        self._state["signature"][owner].fill_(signed)

    def _signature(self, owner: int) -> int:
        return int(self._state["signature"][owner])

    def _check(self, message: Message, owner: int, sender: int) -> None:
        """Raise StaleKeysError if the message belongs to another core of this shard than the own one."""
        theirs, ours = Keyed().signature_of(message.payload), self._signature(owner)
        if theirs != ours:
            raise StaleKeysError(
                f"rank {self._node.rank}, round {self._node.t}, bucket {self._node.bucket}: a message of "
                f"rank {sender} belongs to another core of rank {owner}'s parameters ({theirs:08x}) than "
                f"this rank knows ({ours:08x}). Resume all ranks from one checkpoint of this run."
            )
