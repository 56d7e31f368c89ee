"""The network of an MPI job. The only module that imports mpi4py; importing it initialises MPI.

How it works
------------
Everything is a non-blocking request with an *operation* that says what its completion means (operations.py).
`poll` asks MPI once (Testsome) for all of them; the control plane too waits by polling, so notes are seen
meanwhile and a rank that will never come is an error instead of a hang.

Separate duplicates of the world communicator keep the planes apart: payloads, notes, the control plane, and
one per channel of means, where long ones between hosts go around a ring (ring.py), and others are MPI's
Iallreduce. Dup is collective and blocking, so the channels cannot be made on first use (ranks may use them
in different orders): `open_channels` makes them, called by every rank alike.

Leaving
-------
A rank that closes sends its last words (ledger.py). While closing, a rank swallows messages that nobody
receives, so that every synchronous send completes; MPI_Finalize with a message pending is a segmentation
fault.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import pickle
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NoReturn

import mpi4py
import numpy as np
import torch
from torch import Tensor

from gossip.mpirun import TCP_ENVIRONMENT

mpi4py.rc.thread_level = "multiple"
for _name, _value in TCP_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

from mpi4py import MPI  # noqa: E402  (initialises MPI with the settings above)

from gossip.errors import GossipError, PeerLostError, UsageError, WatchdogError  # noqa: E402
from gossip.transport import ring  # noqa: E402
from gossip.transport.base import (  # noqa: E402
    RATE_BYTES,
    MeanResult,
    Pending,
    Receipt,
    Transport,
    Wake,
    as_bytes,
    check_mean,
    from_bytes,
    mean_bytes,
    mean_messages,
)
from gossip.transport.excepthook import say  # noqa: E402
from gossip.transport.ledger import CONTROL, Ledger  # noqa: E402
from gossip.transport.operations import (  # noqa: E402
    NOTE_BYTES,
    Collective,
    Discard,
    Mean,
    MeanOfOne,
    NoteReceive,
    NoteSend,
    Operation,
    Part,
    PartReceive,
    PartSend,
    Receive,
    RingMean,
    Send,
    ShortMean,
)
from gossip.transport.staging import Staged, host_empty, to_host  # noqa: E402

SPINS = 20  # polls of `wait` before it sleeps; yields to other processes in between
SLEEP_SHARE = 0.02  # a wait sleeps this share of the time since something came: it ends a little late, but
SHORTEST_SLEEP, LONGEST_SLEEP = 50e-6, 1e-3  # takes the core rarely from the ranks that compute (seconds)
LONGEST = (1 << 31) - 1 if MPI.Get_version() < (4, 0) else (1 << 63) - 1  # a count is an int before MPI 4
PIECE_BYTES = 1 << 30  # of a broadcast, which may be of a whole model
LEFT = "finished"  # why a rank is in `departed`, and the value of its note

_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


def _check_length(count: int, item_bytes: int = 1) -> None:
    """Raise UsageError where MPI cannot count to `count`, the items of a message."""
    if count > LONGEST:
        raise UsageError(
            f"a message of {count * item_bytes / 2**30:.2f} GiB: this MPI sends at most {LONGEST} items of "
            f"{item_bytes} B at once. Cut the model into more pieces (a smaller --bucket-mb, bucket_mb= in "
            "join; a tensor stays whole)."
        )


class MPITransport(Transport):
    """`Transport` over all ranks of `world` (default MPI_COMM_WORLD). Creating it is collective.

    Byte counts: a payload counts when it is posted, even while it queues behind another. A mean of b bytes
    counts int(2(n-1)/n * b) bytes in 2(n-1) messages, what a ring all-reduce sends.
    """

    def __init__(self, world: MPI.Intracomm | None = None) -> None:
        super().__init__()
        world = MPI.COMM_WORLD if world is None else world
        self._data, self._notes_comm, self._control = (self._own(world.Dup()) for _ in range(3))
        self._channel_comms: list[MPI.Intracomm] = []
        self.rank, self.size = world.rank, world.size
        host = world.Split_type(MPI.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = host.rank, host.size
        host.Free()

        self.bytes_sent = self.messages_sent = 0
        self.notes = {}
        self.departed = {}

        self._lock = threading.Lock()  # over every MPI call and everything below
        self._requests: list[MPI.Request] = []  # _operations[i] is what _requests[i] is for
        self._operations: list[Operation] = []
        self._statuses: list[MPI.Status] = []
        self._completions = 0  # requests that have ended
        self._sending: dict[tuple[int, int], deque[Send]] = defaultdict(deque)  # the first may go, or went
        self._staging: deque[Send | Mean] = deque()  # go in this order, when they are in the host's memory
        self._problem: GossipError | None = None

        self._ledger = Ledger()
        self._free: dict[int, Tensor] = {}  # channel -> a mean's `own`, to use again: fresh pages are slow

        self._gone: set[int] = set()  # have left with nothing in flight
        self._leaving = self._closed = False
        self._pid = os.getpid()
        if self.size > 1:
            self._listen()
        atexit.register(self._at_exit)

    @staticmethod
    def _own(comm: MPI.Intracomm) -> MPI.Intracomm:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        return comm

    # -- data plane --------------------------------------------------------------------------------

    def post(
        self, payload: Tensor, to: int, tag: int, wake: Wake | None = None, counted: bool = True
    ) -> Pending:
        if payload.dtype is not torch.uint8 or payload.dim() != 1:
            raise TypeError(f"a payload is uint8 [m], not {payload.dtype} {list(payload.shape)}")
        _check_length(payload.numel())
        self._require_open()
        send = Send(to_host(payload), to, tag)
        send.wake = wake
        with self._lock:
            self._ledger.posted[to][tag] += 1
            self.bytes_sent += send.size * counted
            self.messages_sent += counted
            queue = self._sending[to, tag]
            queue.append(send)
            if len(queue) == 1:
                self._stage(send)
        return send

    def _stage(self, operation: Send | Mean) -> None:
        """Start it when it is in the host's memory, behind all that waits for that."""
        self._staging.append(operation)
        self._launch()

    def _launch(self) -> None:
        """Start what is in the host's memory."""
        while self._staging and self._staging[0].staged.done:
            operation = self._staging.popleft()
            if isinstance(operation, Send):
                self._send(operation)
            else:
                self._reduce(operation)

    def _send(self, send: Send) -> None:
        send.began = time.perf_counter()
        self._start(send, self._data.Issend, [send.staged.host.numpy(), MPI.BYTE], send.peer, send.tag)

    def _reduce(self, mean: Mean) -> None:
        if isinstance(mean, RingMean):
            self._receive_part(mean, 0)
            self._send_part(mean, 0)
        else:
            # Not IN_PLACE: then Open MPI sums on one rank and broadcasts, whatever the size.
            self._start(mean, self._channel_comms[mean.channel].Iallreduce, *mean.arrays(), MPI.SUM)

    def _receive_part(self, mean: RingMean, k: int) -> None:
        if k < mean.ring.messages:
            part = PartReceive(mean, k, (self.rank - 1) % self.size)
            receive = self._channel_comms[mean.channel].Irecv
            self._start(part, receive, mean.ring.incoming(k), part.peer, mean.tag)

    def _send_part(self, mean: RingMean, k: int) -> None:
        if k < mean.ring.messages:
            part = PartSend(mean, k, (self.rank + 1) % self.size)
            send = self._channel_comms[mean.channel].Isend
            self._start(part, send, mean.ring.outgoing(k), part.peer, mean.tag)

    def expect(self, frm: int, tag: int, max_bytes: int, wake: Wake | None = None) -> Receipt:
        _check_length(max_bytes)
        self._require_open()
        receive = Receive(frm, tag, max_bytes)
        receive.wake = wake
        with self._lock:
            self._ledger.expected[frm][tag] += 1
            self._start(receive, self._data.Irecv, [receive.buffer.numpy(), MPI.BYTE], frm, tag)
        return receive

    def reserve_tags(self, count: int) -> int:
        highest = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
        if highest is not None and self._tags + count > highest:
            raise UsageError(
                f"{self._tags + count} message tags are needed, and this MPI has {highest}: cut the model "
                "into fewer pieces (a larger --bucket-mb, or p3:slice=…)."
            )
        return super().reserve_tags(count)

    def open_channels(self, count: int) -> int:
        for _ in range(count):
            self._collect("open_channels", self._start_dup)
            self._channel_comms.append(self._own(self._dup))
        return super().open_channels(count)

    def _start_dup(self, comm: MPI.Intracomm) -> MPI.Request:
        self._dup, request = comm.Idup()
        return request

    def start_mean(
        self, x: Tensor, channel: int, wake: Wake | None = None, counted: bool = True
    ) -> MeanResult:
        check_mean(x)
        if channel >= len(self._channel_comms):
            raise ValueError(f"channel {channel} is not open: every rank calls open_channels first")
        self._require_open()
        x = x.detach()
        if self.size == 1:
            return MeanOfOne(x.clone())
        _check_length(x.numel(), 4)
        with self._lock:
            self._ledger.started[channel] += 1
            own = self._free.pop(channel, None)
            if own is None or own.shape != x.shape:
                own = host_empty(x.shape, x.dtype)
            mean = self._mean(to_host(x, into=own), x.device, channel)
            mean.wake = wake
            self.bytes_sent += mean_bytes(x.numel(), self.size) * counted
            self.messages_sent += mean_messages(self.size) * counted
            self._stage(mean)
        return mean

    def _mean(self, staged: Staged, device: torch.device, channel: int) -> Mean:
        index = self._ledger.started[channel]
        on_a_network = self.local_size < self.size  # inside one host MPI's own is quicker
        if on_a_network and ring.serves(4 * staged.host.numel(), self.size):
            return RingMean(staged, device, self.size, channel, index, self.rank)
        return ShortMean(staged, device, self.size, channel, index)

    # -- progress ----------------------------------------------------------------------------------

    def _start(self, operation: Operation, start: Callable[..., MPI.Request], *arguments: Any) -> None:
        try:
            self._track(start(*arguments), operation)
        except MPI.Exception as error:
            self._lose(operation, error)

    def _track(self, request: MPI.Request, operation: Operation) -> Operation:
        self._requests.append(request)
        self._operations.append(operation)
        if len(self._statuses) < len(self._requests):
            self._statuses.append(MPI.Status())
        return operation

    def poll(self) -> None:
        if not (self._requests or self._staging) or not self._lock.acquire(blocking=False):
            return  # nothing to do, or another thread is doing it
        try:
            self._launch()
            self._progress()
            if self._leaving:
                self._swallow()
            for rank in self._ledger.decide():
                self._depart(rank, LEFT)
            problem, self._problem = self._problem, None
        finally:
            self._lock.release()
        if problem is not None:
            raise problem

    def _progress(self) -> None:
        statuses = self._statuses
        try:
            completed = MPI.Request.Testsome(self._requests, statuses)
        except MPI.Exception as error:
            # mpi4py drops the indices: those of the requests that are null now, statuses in the same order.
            completed = [i for i, request in enumerate(self._requests) if request == MPI.REQUEST_NULL]
            if error.Get_error_class() != MPI.ERR_IN_STATUS or not completed:
                raise PeerLostError(f"rank {self.rank} has lost the network: {error}") from error
            failures = [statuses[i].Get_error() for i in range(len(completed))]
        else:
            if not completed:
                return
            failures = [MPI.SUCCESS] * len(completed)
        self._completions += len(completed)
        finished = [self._operations[i] for i in completed]
        for i in sorted(completed, reverse=True):
            self._requests[i], self._operations[i] = self._requests[-1], self._operations[-1]
            self._requests.pop()
            self._operations.pop()
        for operation, status, failure in zip(finished, statuses, failures, strict=False):
            if failure == MPI.SUCCESS:
                operation.finish(status.Get_count(MPI.BYTE), status.Get_source())
                self._follow_up(operation)
            else:
                self._lose(operation, MPI.Exception(failure))

    def _follow_up(self, operation: Operation) -> None:
        self.arrived += isinstance(operation, (Receive, PartReceive))
        if isinstance(operation, Receive):
            self._ledger.received[operation.peer][operation.tag] += 1
        elif isinstance(operation, Send):
            if operation.size >= RATE_BYTES:
                seconds = time.perf_counter() - operation.began
                self.fastest = max(self.fastest, operation.size / seconds)
            queue = self._sending[operation.peer, operation.tag]
            queue.popleft()
            if queue:
                self._stage(queue[0])
        elif isinstance(operation, Part):
            mean = operation.mean
            if isinstance(operation, PartReceive):
                self._receive_part(mean, operation.k + 1)
                mean.ring.take(operation.k)
                self._send_part(mean, operation.k + 1)
            mean.missing -= 1
            if mean.missing == 0:
                mean.done = True
                self._follow_up(mean)
        elif isinstance(operation, Collective):
            self._ledger.completed[operation.channel] += 1
            if isinstance(operation, Mean):
                self._free[operation.channel] = operation.staged.host
        elif isinstance(operation, NoteReceive):
            self._hear(operation.sender, operation.data.tobytes())
            self._listen()
        if operation.wake is not None:
            operation.wake()

    def _lose(self, operation: Operation, error: MPI.Exception) -> None:
        """Translate the failure of a request: a lost peer is noted, the rest is the next `poll`'s error."""
        truncated = error.Get_error_class() == MPI.ERR_TRUNCATE
        if truncated and isinstance(operation, Receive):
            self._problem = GossipError(
                f"rank {self.rank} expects at most {operation.buffer.numel()} bytes from rank "
                f"{operation.peer}, which sent more (tag {operation.tag}): do both run the same compressor?"
            )
        elif truncated and isinstance(operation, Part):
            self._problem = GossipError(
                f"rank {self.rank} takes the mean of {operation.mean.staged.host.numel()} values, and rank "
                f"{operation.peer} that of more: do both run the same model?"
            )
        elif isinstance(operation, (Send, Receive, Part, NoteSend)):
            self._depart(operation.peer, f"connection lost: {error.Get_error_string()}")
        else:
            self._problem = PeerLostError(f"rank {self.rank} has lost a peer: {error.Get_error_string()}")

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        since, spins, completions = time.monotonic(), 0, self._completions
        deadline = since + timeout
        while True:
            self.poll()
            self._serve()
            if ready():
                return True
            now = time.monotonic()
            if now >= deadline:
                return False
            if completions != self._completions:
                since, completions = now, self._completions
            if spins < SPINS:
                spins += 1
                _yield()
            else:
                time.sleep(min(max(SLEEP_SHARE * (now - since), SHORTEST_SLEEP), LONGEST_SLEEP))

    # -- notes -------------------------------------------------------------------------------------

    def note(self, kind: str, value: Any) -> None:
        text = json.dumps([kind, value])
        with self._lock:
            self._record(self.rank, *json.loads(text))
            for peer in range(self.size):
                if peer != self.rank:
                    self._tell(peer, text)

    def _tell(self, peer: int, text: str) -> None:
        data = np.frombuffer(text.encode(), np.uint8)
        if data.size > NOTE_BYTES:
            raise ValueError(f"a note of {data.size} bytes is too long: at most {NOTE_BYTES} fit")
        send = NoteSend(peer, data)
        try:
            self._track(self._notes_comm.Isend([data, MPI.BYTE], peer), send)
        except MPI.Exception as error:
            self._depart(peer, f"connection lost: {error.Get_error_string()}")

    def _listen(self) -> None:
        receive = NoteReceive()
        self._track(self._notes_comm.Irecv([receive.data, MPI.BYTE], MPI.ANY_SOURCE), receive)

    def _record(self, sender: int, kind: str, value: Any) -> None:
        # A new dict, because another thread may be iterating over the old one.
        self.notes[kind] = {**self.notes.get(kind, {}), sender: value}

    def _depart(self, rank: int, why: str) -> None:
        self.departed = {rank: why, **self.departed}

    def _hear(self, sender: int, text: bytes) -> None:
        kind, value = json.loads(text)
        if kind == "left":
            self._ledger.hear(sender, value)
            value = LEFT
        elif kind == "gone":
            self._gone.add(sender)
            return
        self._record(sender, kind, value)

    # -- control plane -----------------------------------------------------------------------------

    def allgather(self, value: Any) -> list[Any]:
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self._collect("allgather", lambda comm: comm.Iallgather(np.array([mine.size]), sizes))
        everyone = np.empty(int(sizes.sum()), np.uint8)
        where = [everyone, sizes.tolist(), None, MPI.BYTE]
        self._collect("allgather", lambda comm: comm.Iallgatherv([mine, MPI.BYTE], where))
        return [pickle.loads(part.tobytes()) for part in np.split(everyone, np.cumsum(sizes)[:-1])]

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        own = self.rank == root
        length = x.numel() * x.element_size()
        data = as_bytes(x.detach().cpu()) if own else torch.empty(length, dtype=torch.uint8)
        for piece in data.split(PIECE_BYTES):
            self._broadcast_piece(piece.numpy(), root)
        if not own:
            with torch.no_grad():
                x.copy_(from_bytes(data, x.dtype).reshape(x.shape))

    def _broadcast_piece(self, data: np.ndarray, root: int) -> None:
        self._collect("broadcast", lambda comm: comm.Ibcast([data, MPI.BYTE], root))

    def barrier(self) -> None:
        self._collect("barrier", lambda comm: comm.Ibarrier())

    def _collect(self, name: str, start: Callable[[MPI.Intracomm], MPI.Request]) -> None:
        """Run one collective of the control plane to its end, or raise when it has none."""
        self._require_open()
        with self._lock:
            self._ledger.started[CONTROL] += 1
            collective = Collective(CONTROL, self._ledger.started[CONTROL])
            try:
                self._track(start(self._control), collective)
            except MPI.Exception as error:
                raise PeerLostError(f"rank {self.rank} cannot start a {name}: {error}") from error
        self.wait(lambda: collective.done or self._obstacle(collective) is not None, math.inf)
        if not collective.done:
            raise PeerLostError(f"rank {self.rank} waits in a {name}, but {self._obstacle(collective)}")

    def _obstacle(self, collective: Collective) -> str | None:
        """Why `collective` will never complete; None while it still may."""
        for rank in self._ledger.absent(collective.channel, collective.index):
            return f"rank {rank} has left ({LEFT})"
        for rank in self._lost():
            return f"rank {rank} has left ({self.departed[rank]})"
        if collective.channel == CONTROL:
            for kind in ("abort", "diverged"):
                for rank, value in list(self.notes.get(kind, {}).items()):
                    if rank != self.rank:
                        return f"rank {rank} has noted {kind!r}: {value}"
        return None

    # -- leaving -----------------------------------------------------------------------------------

    def close(self, timeout: float = 300.0) -> None:
        """See `Transport.close`. Raises `WatchdogError` when `timeout` passes with a message on its way."""
        if self._closed:
            return
        deadline = time.monotonic() + timeout
        if not self._leaving:
            self._drain()
        with self._lock:
            if not self._leaving:
                self._leaving = True
                self._say_last_words()
        settled = self.wait(lambda: not self._stuck(), timeout)
        others = set(range(self.size)) - {self.rank}
        with self._lock:
            for peer in others:
                self._tell(peer, json.dumps(["gone", None]))
        together = settled and self.wait(
            lambda: others <= self._gone | self._lost() and not self._stuck(), deadline - time.monotonic()
        )
        atexit.unregister(self._at_exit)
        with self._lock:
            self._closed = True
            self._release(together)
        if not settled:
            receivers = sorted({to for (to, _), queue in self._sending.items() if queue})
            stuck = f"its messages to ranks {receivers} were not received"
            if not receivers:
                stuck = "a mean over all ranks has not ended: do all take it, of vectors of the same length?"
            raise WatchdogError(f"rank {self.rank} could not leave within {timeout:g} s: {stuck}")

    def _say_last_words(self) -> None:
        self._record(self.rank, "left", LEFT)
        for peer in range(self.size):
            if peer != self.rank:
                self._tell(peer, json.dumps(["left", self._ledger.words_for(peer)]))

    def _lost(self) -> set[int]:
        """Ranks that are gone without a word."""
        return self.departed.keys() - self._ledger.left

    def _stuck(self) -> bool:
        """Whether something of this rank is in flight that the others still have to take."""
        with self._lock:  # not while a ring is between two messages
            operations = list(self._operations)
            staging = bool(self._staging)
        return staging or any(
            operation.in_the_way and not (operation.collective and self._obstacle(operation.collective))
            for operation in operations
        )

    def _swallow(self) -> None:
        """Receive, and forget, one message that nobody here waits for."""
        message = self._data.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status := MPI.Status())
        if message is not None:
            discard = Discard(status.Get_count(MPI.BYTE))
            self._track(message.Irecv([discard.data, MPI.BYTE]), discard)

    def _release(self, together: bool) -> None:
        """Cancel the receives; free the communicators when all ranks do and nothing is left on them."""
        for request, operation in zip(self._requests, self._operations, strict=True):
            if isinstance(operation, (Receive, NoteReceive)):
                request.Cancel()
                request.Wait()
        in_flight = [
            (request, operation)
            for request, operation in zip(self._requests, self._operations, strict=True)
            if request != MPI.REQUEST_NULL
        ]
        _abandoned.extend(in_flight)
        self._requests, self._operations = [], []
        if together and not in_flight:
            for comm in (self._data, self._notes_comm, self._control, *self._channel_comms):
                comm.Free()

    def _require_open(self) -> None:
        if self._leaving:
            raise RuntimeError(f"rank {self.rank} has left the job: its transport is closed")

    def _at_exit(self) -> None:
        """Close for a script that forgot. mpi4py finalizes MPI later, after all of atexit."""
        if os.getpid() != self._pid or MPI.Is_finalized():  # a fork is not a rank
            return
        try:
            self.close()
        except GossipError as error:
            say(self.rank, str(error))
            self.abort(error.exit_code)

    def abort(self, code: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        MPI.COMM_WORLD.Abort(code)
        os._exit(code)  # Abort does not return; an MPI where it does must not go on


# Requests that can never complete, with the buffers MPI may still touch: kept until the process ends.
_abandoned: list[tuple[MPI.Request, Operation]] = []
