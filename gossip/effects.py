"""What an algorithm may ask for: `Node`, its view of the world, and the effects it yields.

Nothing here waits. A method of `Node` that returns an `Effect` is to be yielded; the engine resumes the
generator with the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossip.transport.base import (
    MeanResult,
    Receipt,
    Transport,
    Wake,
    as_bytes,
    from_bytes,
    mean_bytes,
    mean_messages,
)

if TYPE_CHECKING:
    from compressors import Compressor
    from gossip.flat import Segment
    from gossip.outbox import Outbox
    from gossip.stats import Stats
    from topologies import Schedule, Topology

SLOTS = 8
"""Tags per bucket, unless a method says how many it needs: different messages per peer and round."""

MIX_PIECE = 1 << 15
"""Values that `mix` takes at a time on a CPU: a piece of x, v_j and the sum stays in the core's cache."""

_MASK = (1 << 64) - 1


def message_key(*numbers: int) -> int:
    """64 bits derived from (seed, rank, round, bucket, send index), by splitmix64 over each in turn."""
    h = 0
    for number in numbers:
        h = (h ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _MASK
        h ^= h >> 31
    return h


@dataclass(frozen=True)
class Expect:
    """A message that a round will receive: from rank `frm`, in `slot`, of `size` values (None: the bucket's).

    It is float32 if `exact`; else `codec` decodes it (None: the node's own).
    """

    frm: int
    exact: bool = False
    slot: int = 0
    codec: Compressor | None = None
    size: int | None = None


class Effect:
    """Something an algorithm waits for."""


class Update(Effect):
    """The user's optimizer has made its step(s)."""


class Gradient(Effect):
    """Backward has produced this bucket's gradient."""


class Settled(Effect):
    """x is final for this round: the model may have it, and the next forward may start."""


class Arrival(Effect):
    """Something that comes over the network: `ready` once it is here, `result()` to take it."""

    @property
    def ready(self) -> bool:
        raise NotImplementedError

    def result(self) -> object:
        raise NotImplementedError

    def missing(self) -> set[int] | None:
        """The ranks it still waits for; None when it may be any."""
        raise NotImplementedError


@dataclass(frozen=True)
class Message:
    """One received payload of `size` values: float32 where `codec` is None, else what `codec` decodes."""

    payload: Tensor
    codec: Compressor | None
    size: int
    node: Node

    def decoded(self) -> Tensor:
        """The message's values, float32 [size] on the bucket's device. Read only."""
        start = time.perf_counter()
        if self.codec is None:
            v = from_bytes(self._on(self.node.device), torch.float32)
        else:
            v = self.codec.decode(self._on(self.node.device), self.size)
        self.node.stats.spent("decode", start, self.node.label)
        return v

    def add_to(self, out: Tensor, alpha: float = 1.0) -> None:
        """``out += alpha * decoded``, in place; bitwise that at alpha = 1."""
        start = time.perf_counter()
        if self.codec is None:
            out.add_(from_bytes(self._on(out.device), torch.float32), alpha=alpha)
        else:
            self.codec.decode_add(self._on(out.device), out, alpha)
        self.node.stats.spent("decode", start, self.node.label)

    def _on(self, device: torch.device) -> Tensor:
        return self.payload.to(device, non_blocking=True)  # a GPU reads it when it comes to that


@dataclass(frozen=True)
class Posted:
    """A posted receive, and how to read what comes: `codec` (None: float32) on `size` values."""

    receipt: Receipt
    codec: Compressor | None
    size: int


@dataclass(frozen=True)
class Receive(Arrival):
    """The messages of some ranks; the result is ``{rank: Message}``, ranks ascending."""

    posted: dict[int, Posted]
    node: Node

    @property
    def ready(self) -> bool:
        return all(p.receipt.done for p in self.posted.values())

    def result(self) -> dict[int, Message]:
        for j in self.posted:
            self.node.heard[j] = self.node.t
        return {j: Message(p.receipt.payload(), p.codec, p.size, self.node) for j, p in self.posted.items()}

    def missing(self) -> set[int]:
        return {j for j, p in self.posted.items() if not p.receipt.done}


@dataclass(frozen=True)
class Mean(Arrival):
    """The exact mean of a vector over all ranks, which was started at `start` (time.perf_counter)."""

    pending: MeanResult
    node: Node
    start: float

    @property
    def ready(self) -> bool:
        return self.pending.done

    def result(self) -> Tensor:
        if (trace := self.node.stats.trace) is not None:
            trace.flight(f"{self.node.label}: mean", self.start, time.perf_counter(), round=self.node.t)
        return self.pending.value()

    def missing(self) -> None:
        return None


@dataclass
class Node:
    """A bucket's view of its rank and neighbours in one round: what `Algorithm.step` talks to.

    Attributes:
        rank, size: this node's place.
        t: the round, counted from 1.
        n: number of values in the bucket; `segments` names the parameters inside it.
        compressor: the codec, bound to the bucket's segments.
        adopted: per segment, what `Algorithm.adopt` has taken over from the user's optimizer.
        label: how errors and traces call the bucket.
        priority: how urgent its messages are where their order is asked for; the smaller, the more.
        wake: what to call when something has come for the bucket.
    """

    transport: Transport
    outbox: Outbox
    topology: Topology | Schedule
    compressor: Compressor
    stats: Stats
    segments: tuple[Segment, ...]
    device: torch.device
    bucket: int
    seed: int
    tag: int
    label: str
    channel: int | None = None
    adopted: tuple[Any, ...] = ()
    t: int = 0
    priority: int = 0
    wake: Wake | None = None
    heard: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rank, self.size = self.transport.rank, self.transport.size
        self.n = sum(segment.size for segment in self.segments)
        self._sends = 0
        self._posted: dict[tuple[int, int], Posted] = {}

    # -- the graph ---------------------------------------------------------------------------------

    @property
    def owner(self) -> int:
        """The rank that a parameter server's method makes this bucket's server; dealt in turn."""
        return self.bucket % self.size

    @property
    def in_neighbors(self) -> tuple[int, ...]:
        """Ranks this node receives from in this round, ascending."""
        return self.topology.at(self.t).in_neighbors(self.rank)

    @property
    def out_neighbors(self) -> tuple[int, ...]:
        """Ranks this node sends to in this round, ascending."""
        return self.topology.at(self.t).out_neighbors(self.rank)

    @property
    def weights(self) -> dict[int, float]:
        """Row `rank` of W: what this node gives to each in-neighbour and to itself."""
        return self.topology.at(self.t).weights(self.rank)

    def mix(self, x: Tensor, v: Mapping[int, Tensor | Message]) -> Tensor:
        """Σ_{j≠i} W_ij (v_j − x), float32 [n], summed in ascending rank order; exactly 0 with one node.

        Rows of W sum to 1, so x + mix(x, v) = W_ii x + Σ_{j≠i} W_ij v_j.
        """
        values = {j: m.decoded() if isinstance(m, Message) else m for j, m in sorted(v.items())}
        start = time.perf_counter()
        weights, out = self.weights, torch.zeros_like(x)
        piece = MIX_PIECE if x.device.type == "cpu" else max(1, x.numel())
        for out_k, x_k, *v_k in zip(*(u.split(piece) for u in (out, x, *values.values())), strict=True):
            for j, v_jk in zip(values, v_k, strict=True):
                out_k.add_(v_jk - x_k, alpha=weights[j])
        self.stats.spent("mix", start, self.label)
        return out

    # -- sending and waiting -----------------------------------------------------------------------

    def send(
        self,
        v: Tensor,
        to: Iterable[int] | None = None,
        exact: bool = False,
        slot: int = 0,
        codec: Compressor | None = None,
        add_to: Tensor | None = None,
    ) -> Tensor:
        """Encode v (float32 [m]), post it to `to` (all out-neighbours by default); never waits.

        `codec` is the node's by default, which is made for vectors of the bucket's length. Returns C(v)
        exactly as the receivers will apply it (v itself when exact). With `add_to` it is not made at all:
        ``add_to += C(v)``, bitwise, and `add_to` is returned.
        """
        codec = None if exact else self.compressor if codec is None else codec
        start = time.perf_counter()
        if codec is None:
            payload = as_bytes(v)
        else:
            payload = codec.encode(v, message_key(self.seed, self.rank, self.t, self.bucket, self._sends))
        self.stats.spent("encode", start, self.label)
        self._sends += 1
        ranks = tuple(self.out_neighbors if to is None else to)
        for j in ranks:
            self.outbox.post(payload, j, self.tag + slot, t=self.t, priority=self.priority, label=self.label)
        if codec is None:
            return v if add_to is None else add_to.add_(v)
        self.stats.saved_bytes += (4 * v.numel() - payload.numel()) * len(ranks)
        start = time.perf_counter()
        if add_to is None:
            own = codec.decode(payload, v.numel())
        else:
            own = add_to
            codec.decode_add(payload, own)
        self.stats.spent("decode", start, self.label)
        if v.numel() and self.stats.samples_error(self.t):
            self.stats.sample_error(v, own if add_to is None else codec.decode(payload, v.numel()))
        return own

    def update(self) -> Update:
        """The live parameters after the user's optimizer (float32 [n], read only); x is as last settled."""
        return Update()

    def gradient(self) -> Gradient:
        """This bucket's local gradient, float32 [n], to be overwritten in place with the final one."""
        return Gradient()

    def settled(self) -> Settled:
        """x is final. What follows overlaps the next forward and backward."""
        return Settled()

    def receive(self, frm: Iterable[int] | None = None, slot: int = 0) -> Receive:
        """The messages of `frm` (all in-neighbours by default) in `slot`: ``{rank: Message}``."""
        ranks = self.in_neighbors if frm is None else sorted(frm)
        return Receive({j: self._posted[j, slot] for j in ranks}, self)

    def mean(self, v: Tensor) -> Mean:
        """The exact mean of v (float32 [m]) over all ranks; it starts at once.

        The method has declared it in `Algorithm.means`.
        """
        if self.channel is None:
            raise TypeError("a method that calls node.mean() declares the lengths in Algorithm.means(node)")
        start = time.perf_counter()
        self.outbox.count(mean_bytes(v.numel(), self.size), mean_messages(self.size))
        return Mean(self.transport.start_mean(v, self.channel, self.wake), self, start)

    # -- for the engine ----------------------------------------------------------------------------

    def open(self, expected: Iterable[Expect]) -> None:
        """Enter round `t`: post its receives."""
        self._sends = 0
        self._posted = {(e.frm, e.slot): self._post(e) for e in expected}

    def _post(self, e: Expect) -> Posted:
        codec, size = self.reads(e)
        receipt = self.transport.expect(e.frm, self.tag + e.slot, self.most_bytes(e), self.wake)
        return Posted(receipt, codec, size)

    def reads(self, e: Expect) -> tuple[Compressor | None, int]:
        """The codec of a declared message (None: float32) and its number of values."""
        codec = None if e.exact else self.compressor if e.codec is None else e.codec
        return codec, self.n if e.size is None else e.size

    def most_bytes(self, e: Expect) -> int:
        """The length of a declared message, or the most that it can be."""
        codec, size = self.reads(e)
        return 4 * size if codec is None else codec.max_bytes(size)
