"""Virtual nodes: n ranks in one process, a thread each, with one baton.

A node runs until it must wait; then the baton goes to the next node in the circle, and with it the process's
random number streams are swapped, so a run is reproducible whatever the operating system does. When the baton
has gone round and nobody could go on, that is a deadlock, and it is known at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from gossip.errors import DeadlockError, GossipError, PeerLostError
from gossip.transport.base import Transport, Wake, check_mean, mean_bytes, mean_messages

Key = tuple[int, int, int]  # from, to, tag

INTERRUPT_SECONDS = 10.0
"""How long an interrupted `launch` lets its nodes end; Python aborts when threads outlive it."""


@dataclass
class _Pending:
    wake: Wake | None
    done: bool = field(default=False, init=False)

    def finish(self) -> None:
        self.done = True
        if self.wake is not None:
            self.wake()


@dataclass
class _Send(_Pending):
    payload: Tensor


@dataclass
class _Receipt(_Pending):
    max_bytes: int
    data: Tensor | None = field(default=None, init=False)

    def payload(self) -> Tensor:
        assert self.data is not None
        return self.data


@dataclass
class _Reduction:
    """One mean: the contributions so far, and the result once all are there."""

    parts: dict[int, Tensor] = field(default_factory=dict)
    wakes: list[Wake] = field(default_factory=list)
    mean: Tensor | None = None


@dataclass
class _MeanResult:
    reduction: _Reduction

    @property
    def done(self) -> bool:
        return self.reduction.mean is not None

    def value(self) -> Tensor:
        assert self.reduction.mean is not None
        return self.reduction.mean.clone()


def _rng_state() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _set_rng_state(state: tuple[Any, ...]) -> None:
    python, numpy, cpu, cuda = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


class World:
    """What n virtual nodes share: mailboxes, reductions, notes, and the baton."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.posted: defaultdict[Key, deque[_Send]] = defaultdict(deque)
        self.expected: defaultdict[Key, deque[_Receipt]] = defaultdict(deque)
        self.reductions: dict[tuple[object, int], _Reduction] = {}
        self.gathered: dict[int, dict[int, Any]] = {}
        self.notes: dict[str, dict[int, Any]] = {}
        self.departed: dict[int, str] = {}
        self.failure: BaseException | None = None
        self.progress = 0  # grows whenever something happened that might let a waiting node go on
        self.batons = [threading.Semaphore(0) for _ in range(size)]
        self.alive = set(range(size))
        self.nodes = [LocalTransport(self, rank) for rank in range(size)]

    def match(self, key: Key) -> None:
        """Deliver what has been both posted and expected under `key`."""
        posted, expected = self.posted[key], self.expected[key]
        while posted and expected:
            send, receipt = posted.popleft(), expected.popleft()
            if send.payload.numel() > receipt.max_bytes:
                raise GossipError(
                    f"rank {key[1]} expects at most {receipt.max_bytes} bytes from rank {key[0]}, "
                    f"which sent {send.payload.numel()}: do both run the same compressor?"
                )
            receipt.data = send.payload
            send.finish()
            receipt.finish()
        self.progress += 1

    def pass_baton(self, rank: int) -> None:
        """Let the next living node after `rank` run."""
        for step in range(1, self.size + 1):
            after = (rank + step) % self.size
            if after in self.alive:
                self.batons[after].release()
                return


class LocalTransport(Transport):
    """One virtual node. With size 1 it is also the transport of a plain single process."""

    needs_polling: ClassVar[bool] = False

    def __init__(self, world: World, rank: int) -> None:
        super().__init__()
        self._world = world
        self.rank = self.local_rank = rank
        self.size = self.local_size = world.size
        self.bytes_sent = self.messages_sent = 0
        self.notes, self.departed = world.notes, world.departed
        self._means: defaultdict[object, int] = defaultdict(int)
        self._gathers = 0

    def post(
        self, payload: Tensor, to: int, tag: int, wake: Wake | None = None, counted: bool = True
    ) -> _Send:
        send = _Send(wake, payload.cpu())
        self.bytes_sent += payload.numel() * counted
        self.messages_sent += counted
        key = (self.rank, to, tag)
        self._world.posted[key].append(send)
        self._world.match(key)
        return send

    def expect(self, frm: int, tag: int, max_bytes: int, wake: Wake | None = None) -> _Receipt:
        receipt = _Receipt(wake, max_bytes)
        key = (frm, self.rank, tag)
        self._world.expected[key].append(receipt)
        self._world.match(key)
        return receipt

    def start_mean(
        self, x: Tensor, channel: int, wake: Wake | None = None, counted: bool = True
    ) -> _MeanResult:
        check_mean(x)
        self.bytes_sent += mean_bytes(x.numel(), self.size) * counted
        self.messages_sent += mean_messages(self.size) * counted
        sequence = self._means[channel] = self._means[channel] + 1
        reduction = self._world.reductions.setdefault((channel, sequence), _Reduction())
        reduction.parts[self.rank] = x.detach().clone()
        if wake is not None:
            reduction.wakes.append(wake)
        if len(reduction.parts) == self.size:
            total = torch.zeros_like(x)
            for rank in range(self.size):
                total += reduction.parts.pop(rank)
            reduction.mean = total.div_(self.size)
            del self._world.reductions[channel, sequence]
            for call in reduction.wakes:
                call()
        self._world.progress += 1
        return _MeanResult(reduction)

    def poll(self) -> None:
        pass  # delivery happens in post and expect

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        world, deadline = self._world, time.monotonic() + timeout
        while True:
            self._serve()
            if ready():
                return True
            if world.failure is not None:
                raise PeerLostError(f"rank {self.rank} was waiting when another rank failed: {world.failure}")
            if time.monotonic() > deadline:
                return False
            if self._idle_since(world.progress):
                raise DeadlockError(
                    f"rank {self.rank}: every virtual node waits and no message is in flight. "
                    "Do all ranks run the same number of steps and the same collective calls?"
                )
            self._yield_baton()

    _seen = -1

    def _idle_since(self, progress: int) -> bool:
        """Whether the baton went round since this node's last check and nobody got anywhere."""
        if self._seen == progress:
            return True
        self._seen = progress
        return False

    def _yield_baton(self) -> None:
        if self._world.alive == {self.rank}:
            return
        state = _rng_state()
        self._world.pass_baton(self.rank)
        self._world.batons[self.rank].acquire()
        _set_rng_state(state)

    def note(self, kind: str, value: Any) -> None:
        self.notes.setdefault(kind, {})[self.rank] = value
        self._world.progress += 1

    def allgather(self, value: Any) -> list[Any]:
        self._gathers += 1
        sequence = self._gathers
        values = self._world.gathered.setdefault(sequence, {})
        values[self.rank] = value
        self._world.progress += 1

        def ready() -> bool:
            gone = self.departed.keys() - values.keys()
            if gone:
                j = min(gone)
                raise PeerLostError(
                    f"rank {self.rank} waits for all ranks, but rank {j} has left ({self.departed[j]})."
                )
            return len(values) == self.size

        self.wait(ready, float("inf"))
        self._world.gathered.pop(sequence, None)
        return [values[rank] for rank in range(self.size)]

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        values = self.allgather(x.detach().clone() if self.rank == root else None)
        if self.rank != root:
            with torch.no_grad():
                x.copy_(values[root])

    def close(self, timeout: float = 300.0) -> None:
        if self.rank in self.departed:
            return
        self._drain()
        self.leave("finished")
        self.wait(lambda: len(self.departed) == self.size, timeout)

    def leave(self, why: str) -> None:
        """Tell the others that nothing more will come from this node."""
        self.note("left", why)
        self.departed[self.rank] = why

    def abort(self, code: int) -> NoReturn:
        raise SystemExit(code)


_current = threading.local()


def current() -> LocalTransport | None:
    """The virtual node that this thread is, if it is one."""
    return getattr(_current, "node", None)


def launch(fn: Callable[..., Any], nodes: int, *args: Any) -> list[Any]:
    """Run ``fn(*args)`` on `nodes` virtual nodes in this process; their results, by rank.

    Each node starts from the caller's random state, as n processes with the same seed would. The first error
    of any node ends all and is raised here. The caller's random state is left as it was.
    """
    if nodes < 1:
        raise ValueError(f"nodes={nodes}: give 1 or more")
    world, results, threads = World(nodes), [None] * nodes, torch.get_num_threads()
    start = _rng_state()

    def run(rank: int) -> None:
        node = _current.node = world.nodes[rank]
        world.batons[rank].acquire()
        try:
            if world.failure is None:
                torch.set_num_threads(threads)  # new threads start with torch's default
                _set_rng_state(start)
                with torch.autograd.set_multithreading_enabled(False):
                    results[rank] = fn(*args)
                    node.close()
        except BaseException as error:
            world.failure = world.failure or error
            node.leave(f"{type(error).__name__}: {error}")
        finally:
            world.alive.discard(rank)
            world.progress += 1
            world.pass_baton(rank)

    pool = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(nodes)
    ]
    begun = False
    try:
        for thread in pool:
            thread.start()
        world.batons[0].release()
        begun = True
        for thread in pool:
            while thread.is_alive():
                thread.join(0.2)  # returns now and then, so that signals are handled
    except BaseException as interrupt:  # Ctrl-C, at any time: every node ends at its next wait
        world.failure = world.failure or interrupt
        started = {rank for rank, thread in enumerate(pool) if thread.ident is not None}
        world.alive &= started
        if not begun:
            for rank in started:  # wherever the baton would have come from
                world.batons[rank].release()
        deadline = time.monotonic() + INTERRUPT_SECONDS
        for rank in started:
            pool[rank].join(max(0.0, deadline - time.monotonic()))
        raise
    finally:
        _set_rng_state(start)
    if world.failure is not None:
        raise world.failure
    return results
