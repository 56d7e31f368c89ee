"""What the engine asks of a network: point-to-point payloads, exact means, small notes.

Nothing here blocks except `wait` and the control plane (`allgather`, `broadcast`, `barrier`). A payload is
a 1-D uint8 tensor; its length travels with the message, never beside it, so the bytes counted here are
the bytes handed to the network.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

RATE_BYTES = 1 << 16
"""Smaller payloads say more about latency than about the link's rate."""

Wake = Callable[[], None]
"""Called once, when something is done (perhaps before the call that starts it returns), on whatever thread
drives the transport. It must not call the transport."""


class Pending(Protocol):
    """Something on its way. `done` never blocks and changes only inside `Transport.poll` or `wait`."""

    @property
    def done(self) -> bool: ...


class Receipt(Pending, Protocol):
    """A posted receive."""

    def payload(self) -> Tensor:
        """The message, uint8 [m] on the CPU, m as it arrived. Only when `done`."""
        ...


class MeanResult(Pending, Protocol):
    """An all-reduce in flight."""

    def value(self) -> Tensor:
        """The mean over all ranks, float32 of the input's shape and device. Only when `done`."""
        ...


class Party(Protocol):
    """Somebody on this rank whom other ranks wait for, whatever this rank itself is waiting for."""

    def serve(self) -> None:
        """Do what can be done now; never waits."""

    def drain(self) -> None:
        """Wait until everything that the others are owed has been handed to the transport."""


class Transport(ABC):
    """One rank's connection to the others.

    Attributes:
        rank, size: place in the job.
        local_rank, local_size: place among the ranks of this host.
        bytes_sent, messages_sent: what this rank has handed to the network so far. A payload to d neighbours
            counts d times; a mean of b bytes counts 2(n-1)/n * b, the cost of a ring all-reduce. The control
            plane and notes are not counted.
        fastest: the highest rate in bytes/s at which a payload of `RATE_BYTES` or more has gone out, from its
            start to its receiver; 0 while there was none, or no network. A link is at least this fast.
        arrived: messages that have come in so far, those of long means among them; 0 for virtual nodes, which
            know at once when nothing will come.
        notes: latest note of each kind from each rank: ``notes[kind][rank] -> value``. The sender's own notes
            are included. The kind ``"left"`` is written by `close` and tells that a rank will send nothing
            more.
        departed: ranks that have left or are known to be lost -> why.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    bytes_sent: int
    messages_sent: int
    fastest: float = 0.0
    arrived: int = 0
    notes: dict[str, dict[int, Any]]
    departed: dict[int, str]
    needs_polling: ClassVar[bool] = True
    """Whether messages move only while somebody polls."""

    def __init__(self) -> None:
        self._parties: weakref.WeakSet[Party] = weakref.WeakSet()

    # -- data plane: never blocks ------------------------------------------------------------------

    @abstractmethod
    def post(
        self, payload: Tensor, to: int, tag: int, wake: Wake | None = None, counted: bool = True
    ) -> Pending:
        """Send uint8 [m] to rank `to`. The transport keeps `payload`: the caller must not write to it again.

        `counted` is False for what is no training traffic.

        `done` means that the receiver has *matched* the message (a synchronous send), not merely that it
        left. At most one message per (`to`, `tag`) is on the wire; later ones queue here, in order.
        """

    @abstractmethod
    def expect(self, frm: int, tag: int, max_bytes: int, wake: Wake | None = None) -> Receipt:
        """Post a receive for the next message from `frm` under `tag`, of at most `max_bytes` bytes.

        Messages under one (`frm`, `tag`) match receives in order.
        """

    @abstractmethod
    def start_mean(
        self, x: Tensor, channel: int, wake: Wake | None = None, counted: bool = True
    ) -> MeanResult:
        """Start the exact mean of `x` (float32 [n]) over all ranks. The caller may overwrite `x` at once.

        Every rank starts the means of one `channel` in the same order; channels complete in any order (each
        has its own communicator: two reductions on one communicator may be matched wrongly).
        """

    @abstractmethod
    def poll(self) -> None:
        """Make progress; never blocks. Must be cheap: every hook of the model calls it."""

    _tags = 0
    _channels = 0

    def reserve_tags(self, count: int) -> int:
        """The first of `count` tags nobody else uses. Every rank reserves in the same order."""
        self._tags += count
        return self._tags - count

    def open_channels(self, count: int) -> int:
        """Collective: make `count` channels for `start_mean`; the number of the first one."""
        self._channels += count
        return self._channels - count

    # -- waiting -----------------------------------------------------------------------------------

    def attend(self, party: Party) -> None:
        """From now on serve `party` in every `wait`, and let it drain before this rank leaves.

        The transport does not keep it alive.
        """
        self._parties.add(party)

    def _serve(self) -> None:
        for party in list(self._parties):
            party.serve()

    def _drain(self) -> None:
        for party in list(self._parties):
            party.drain()

    @abstractmethod
    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Poll until `ready()`; False after `timeout` seconds. Leaves the core to others while it waits.

        Raises `DeadlockError` when it can be known at once that nothing will ever arrive (virtual nodes).
        """

    # -- notes and control plane -------------------------------------------------------------------

    @abstractmethod
    def note(self, kind: str, value: Any) -> None:
        """Tell every rank a small JSON value, non-blocking; they find it in ``notes[kind][rank]``."""

    @abstractmethod
    def allgather(self, value: Any) -> list[Any]:
        """Collective: every rank's `value` (any picklable object), by rank."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int = 0) -> None:
        """Collective: overwrite `x` (any dtype, any strides, any device) with the root's values."""

    def barrier(self) -> None:
        """Collective: return when every rank has called it."""
        self.allgather(None)

    @abstractmethod
    def close(self, timeout: float = 300.0) -> None:
        """Note ``"left"``, then wait (at most `timeout`) until every rank has left, with nothing in flight.

        Idempotent. After it a rank that still waits for this one gets a `PeerLostError` instead of a hang.
        """

    @abstractmethod
    def abort(self, code: int) -> NoReturn:
        """End every rank of the job now, with exit code `code`."""


def check_mean(x: Tensor) -> None:
    """Raise TypeError unless `x` is a vector that means are taken of, float32."""
    if x.dtype is not torch.float32:
        raise TypeError(f"a mean is taken in float32, not {x.dtype}")


def mean_bytes(values: int, n: int) -> int:
    """What one rank's part in a mean of `values` float32 over n ranks counts: int(2(n-1)/n * 4 values)."""
    return 2 * (n - 1) * 4 * values // n


def mean_messages(n: int) -> int:
    """How many messages one rank's part in a mean over n ranks counts."""
    return 2 * (n - 1)


def as_bytes(x: Tensor) -> Tensor:
    """A contiguous copy of `x` as uint8 [numel * itemsize]."""
    return x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def from_bytes(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `as_bytes`: a 1-D view of `payload` as `dtype`."""
    return payload.view(dtype)
