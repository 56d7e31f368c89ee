"""Drives the algorithms' generators: when a round starts, who resumes it, what overlaps what.

A round on one bucket is a `Lane`. Parameter methods start their round at the forward pass (so that what they
send from x travels during forward and backward), get the optimizer's result at the end of `step()`, and after
`settled` leave a tail that finishes during the next forward and backward. Gradient methods run inside
backward; those that post in an order of their own (P3) go on into the next forward, which waits for them
module by module.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from compressors import NonFiniteError
from gossip.algorithms.base import Algorithm, Steps
from gossip.effects import Arrival, Effect, Gradient, Node, Receive, Settled, Update
from gossip.errors import CheckpointError, DivergedError, PeerLostError, UsageError, WatchdogError
from gossip.flat import Bucket, FlatModel
from gossip.lazy import LazyOptimizer
from gossip.outbox import Outbox, Posting
from gossip.patience import Patience
from gossip.stats import Stats
from gossip.transport.base import Transport

TICK_SECONDS = 5e-3
"""The shortest time between two polls from hooks: a poll may yield the core, and hooks are many."""
QUEUE_TICK_SECONDS = 1e-3
"""The same while messages wait for others to be taken: a poll hands on as many as it finds taken."""


class Lane:
    """One bucket: its vectors, its algorithm state, and the generator of the round it is in.

    Attributes:
        x: the algorithm's x. For parameter methods it is a buffer of its own, as of the last `settled`; the
            model's live parameters are `live`. For gradient methods both are the same.
        t: rounds finished. During round t + 1 `node.t` is t + 1.
        settled: whether the model has this round's x already.
    """

    def __init__(self, bucket: Bucket, flat: FlatModel, algorithm: Algorithm, node: Node) -> None:
        self.bucket, self.algorithm, self.node = bucket, algorithm, node
        self.live = bucket.of(flat.vector)
        self.x = self.live.clone() if algorithm.kind == "parameter" else self.live
        self.state = algorithm.init(self.x, node)
        self.vectors = {"live": self.live} | ({} if self.x is self.live else {"x": self.x})
        self.t = 0
        self.settled = True
        self.effect: Effect | None = None
        self._steps: Steps | None = None

    @property
    def running(self) -> bool:
        """Whether a round is in progress."""
        return self._steps is not None

    @property
    def owed(self) -> bool:
        """Whether the round in progress needs nothing more from the model, only what is still to arrive."""
        if not self.running:
            return False
        return self.settled if self.algorithm.kind == "parameter" else not isinstance(self.effect, Gradient)

    def start(self) -> None:
        """Enter the next round: post its receives and run it to its first wait."""
        self.node.t = self.t + 1
        self.node.open(self.algorithm.expects(self.node))
        self.settled = False
        self._steps = self.algorithm.step(self.x, self.state, self.node)
        self.resume(None)

    def resume(self, value: object) -> None:
        """Hand the generator what it waited for, and run on as long as nothing has to be waited for."""
        self.effect = self._advance(value)
        self.advance()

    def _advance(self, value: object) -> Effect | None:
        try:
            return cast(Steps, self._steps).send(value)
        except StopIteration:
            self._settle()
            self._steps = None
            self.t = self.node.t
            return None
        except NonFiniteError as error:
            raise self.diverged(self.node.t) from error

    def advance(self) -> None:
        """Take every arrival that is ready; never waits."""
        while True:
            if isinstance(self.effect, Settled):
                self._settle()
                self.effect = self._advance(None)
            elif isinstance(self.effect, Arrival) and self.effect.ready:
                self.effect = self._advance(self.effect.result())
            else:
                return

    def _settle(self) -> None:
        if not self.settled:
            self.settled = True
            if self.x is not self.live:
                self.live.copy_(self.x)

    def diverged(self, t: int) -> DivergedError:
        """Tell the others that this bucket holds NaN or infinity in round t; the error to raise here."""
        where = {"rank": self.node.rank, "round": t, "bucket": self.node.bucket}
        self.node.transport.note("diverged", where)
        return _diverged(where)


def _diverged(where: dict[str, int], second_hand: bool = False) -> DivergedError:
    error = DivergedError(
        f"rank {where['rank']}, round {where['round']}, bucket {where['bucket']}: NaN or infinity in the "
        "parameters or gradients. Training has diverged: lower the learning rate, warm up, or take a finer "
        "compressor."
    )
    error.second_hand = second_hand
    return error


M = TypeVar("M", bound=Callable[..., Any])


def _locked(method: M) -> M:
    """A method of the engine that a progress thread must not run into."""

    @functools.wraps(method)
    def call(self: Engine, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return cast(M, call)


class Engine:
    """One rank's rounds.

    Args:
        overlap: False runs the same generators to their end at once: the same numbers, no overlap.
        timeout: seconds without an arrival before a `WatchdogError`.
        lazy: applies what arrives after `step()`. Without it every gradient is final when backward returns.
    """

    def __init__(
        self,
        flat: FlatModel,
        algorithm: Algorithm,
        nodes: Iterable[Node],
        outbox: Outbox,
        transport: Transport,
        stats: Stats,
        overlap: bool,
        timeout: float,
        lazy: LazyOptimizer | None = None,
    ) -> None:
        self.flat, self.algorithm, self.transport, self.stats = flat, algorithm, transport, stats
        self.overlap, self.timeout = overlap, timeout
        self._outbox, self._lazy = outbox, lazy
        self._lock = threading.RLock()
        self._arrived: deque[Lane] = deque()  # lanes that something has come for
        self.lanes = [
            Lane(bucket, flat, algorithm, node) for bucket, node in zip(flat.buckets, nodes, strict=True)
        ]
        for lane in self.lanes:
            lane.node.wake = functools.partial(self._arrived.append, lane)
        self.every: int = getattr(algorithm, "every", 1)
        self.local_steps = 0  # taken since the last exchange
        self._next_tick = 0.0
        self.sync = True  # False inside no_sync()
        self._in_forward = False  # lanes may enter the next round
        self._in_backward = False
        self._reduced = False  # this step's gradients have been handed over
        self._missing: dict[Lane, set[nn.Parameter]] = {}
        self._stale: set[nn.Parameter] = set()  # had their last update only after this step's forward
        self._lanes_of: defaultdict[nn.Parameter, list[Lane]] = defaultdict(list)
        for lane in sorted(self.lanes, key=_staggered):
            for p in lane.bucket.parameters:
                self._lanes_of[p].append(lane)
        self._prioritize()
        transport.attend(self)

    @property
    def averages_gradients(self) -> bool:
        """Whether this is a gradient method."""
        return self.algorithm.kind == "gradient"

    @property
    def moves_in_forward(self) -> bool:
        """Whether a forward has something to drive: only an exact mean of gradients ends with backward."""
        return not self.averages_gradients or self.algorithm.sends_messages

    @property
    def applying(self) -> bool:
        """Whether the optimizer is making a part of a step that the user has made before."""
        return self._lazy is not None and self._lazy.applying

    @property
    def round(self) -> int:
        """Rounds finished by every bucket."""
        return min(lane.t for lane in self.lanes)

    # -- progress ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let messages move and rounds run on, now and then; never waits. Every hook calls it."""
        now = time.perf_counter()
        if now < self._next_tick:
            return
        self._next_tick = now + (TICK_SECONDS if self._outbox.empty else QUEUE_TICK_SECONDS)
        self.transport.poll()
        self.serve()

    def serve(self) -> None:
        """Advance the lanes that something has come for, and post what may leave; never waits.

        A `Party` of the transport, which calls this while the rank waits for anything at all: other ranks may
        be waiting for what this one has to send on.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread is doing it
        try:
            while self._arrived:
                lane = self._arrived.popleft()
                lane.advance()
                if self._in_forward and not lane.running:
                    lane.start()
            self._outbox.pump()
        finally:
            self._lock.release()

    def begin(self) -> None:
        """Start the next round on every bucket whose last one has ended."""
        for lane in self.lanes:
            if not lane.running:
                lane.start()

    def _wait(self, lanes: Iterable[Lane], reached: Callable[[Lane], bool]) -> None:
        """Wait until all `lanes` have `reached` something; the time is exposed: nothing is left to compute.

        Raises:
            WatchdogError: none of them has got there for `timeout` seconds.
        """
        left = deque(lane for lane in lanes if not reached(lane))
        if not left:
            return
        label = left[0].node.label + (f" and {len(left) - 1} more" if len(left) > 1 else "")
        start, busy = time.perf_counter(), self.stats.busy
        late: dict[int, float] = {}
        patience = Patience(self.transport, self.timeout)

        def over() -> bool:
            while left and reached(left[0]):
                left.popleft()
            if not left:
                return True
            if isinstance(left[0].effect, Receive):
                late.update(dict.fromkeys(left[0].effect.missing(), time.perf_counter() - start))
            self._check_peers(left[0])
            return patience.is_out(len(left))

        self.transport.wait(over, math.inf)
        end = time.perf_counter()
        self.stats.exposed += end - start - (self.stats.busy - busy)
        if self.stats.trace is not None:
            self.stats.trace.span("wait", label, start, end)
        for j, seconds in late.items():
            self.stats.waited_for(j, seconds)
        if left:
            raise WatchdogError(self._stuck(left[0]))

    def _check_peers(self, lane: Lane) -> None:
        for j, where in self.transport.notes.get("diverged", {}).items():
            if j != self.transport.rank:
                raise _diverged(where, second_hand=True)
        if not isinstance(lane.effect, Arrival) or lane.effect.ready:
            return
        departed = self.transport.departed
        finished = {
            j: t
            for j, (run, t) in self.transport.notes.get("finished", {}).items()
            if run == self._run and t < lane.node.t
        }
        missing = lane.effect.missing()
        for j in sorted(departed.keys() | finished.keys()):
            if missing is None or j in missing:
                what = f"finished after round {finished[j]}" if j in finished else f"left ({departed[j]})"
                error = PeerLostError(
                    f"rank {self.transport.rank}, round {lane.node.t}, {lane.node.label}: "
                    f"waits for rank {j}, which has {what}. Did every rank run the same number of steps? "
                    "node.shard(dataset, batch_size) gives each the same."
                )
                error.second_hand = j not in finished
                raise error

    @property
    def _run(self) -> int:
        """Tells this session of the process from its others, alike on all ranks."""
        return self.lanes[0].node.tag

    def say_finished(self) -> None:
        """Tell the others that no round will follow: one that waits for more has taken more steps."""
        self.transport.note("finished", [self._run, self.round])

    def _stuck(self, lane: Lane) -> str:
        where = f"rank {self.transport.rank}, round {lane.node.t}, {lane.node.label}"
        missing = lane.effect.missing() if isinstance(lane.effect, Arrival) else set()
        if missing is None:
            whom = "all ranks to join its all-reduce"
        else:
            whom = ", ".join(
                f"rank {j} (last heard from in round {lane.node.heard.get(j, 0)})" for j in sorted(missing)
            )
        return (
            f"{where}: nothing arrived for {self.timeout:g} s. Waiting for {whom}. "
            "If that rank is only slow, raise --timeout (join(timeout=...))."
        )

    @_locked
    def drain(self) -> None:
        """Wait until all rounds have ended that await nothing of the model, and what they sent has left."""
        self._end_rounds()
        self.catch_up()

        patience = Patience(self.transport, self.timeout)

        def over() -> bool:
            gone = self.transport.departed.keys() & self._outbox.receivers()
            if gone:
                raise PeerLostError(
                    f"rank {self.transport.rank} still has messages for rank {min(gone)}, which has left."
                )
            return self._outbox.empty or patience.is_out(len(self._outbox))

        self.transport.wait(over, math.inf)
        if not self._outbox.empty:
            raise WatchdogError(
                f"rank {self.transport.rank}: ranks {self._outbox.receivers()} have not taken its messages "
                f"for {self.timeout:g} s. If they are only slow, raise --timeout (join(timeout=...))."
            )
        self._book_traffic()

    def _end_rounds(self) -> None:
        self._wait(self.lanes, _is_done)

    # -- hooks on the model and the optimizer ------------------------------------------------------

    @_locked
    def on_forward(self) -> None:
        """The model starts a training forward."""
        self._forget_failed_backward()
        self.tick()
        if self.overlap or self.averages_gradients:
            self.begin()
        self._in_forward = self._lazy is not None

    @_locked
    def on_module(self, module: nn.Module, learning: bool) -> None:
        """A module is about to run: in a training forward (`learning`), or in any other."""
        if learning:
            self.tick()
        if self._lazy is not None:
            if learning:
                self._lazy.order.saw(module)
                self._apply(self._lazy.order.needs(module))
            else:
                self.catch_up()

    @_locked
    def on_step_begin(self, has_closure: bool = False) -> None:
        """The optimizer is about to step; with a closure, backward is yet to come."""
        if not has_closure:
            self._forget_failed_backward()
        self._begin_step(has_closure)

    def _begin_step(self, has_closure: bool = False) -> None:
        self.flat.check_attached()
        if self.averages_gradients:
            if not self._reduced and not has_closure:
                self._reduce()  # no backward in this step: a zero gradient
            if self._lazy is not None:
                self._park(self._lazy)
        elif self.overlap and self.local_steps + 1 == self.every and not has_closure:
            self._await(Update)

    @_locked
    def on_step_end(self) -> None:
        """The optimizer has stepped."""
        if self.averages_gradients:
            if not self._reduced:
                raise UsageError(
                    "optimizer.step(closure): the closure has not called backward() (outside of no_sync), "
                    "so this step has no gradient to exchange. Call it there, or before step() without it."
                )
            self._reduced = False
            self._stale.clear()
            if self._lazy is not None:
                self._lazy.check()
            if self._outbox.posting != Posting():  # as those will be that come later: see LazyOptimizer
                for p in self.flat.names:
                    p.grad = None
        else:
            self.local_steps += 1
            if self.local_steps == self.every:
                self.local_steps = 0
                self._exchange()
        self._book_traffic()
        self.stats.end_step()

    def _await(self, effect: type[Effect]) -> None:
        """Bring every lane to where it waits for `effect`, starting its round if need be."""
        for lane in self.lanes:
            self._wait([lane], lambda lane: not lane.running or isinstance(lane.effect, effect))
            if not lane.running:
                lane.start()
                self._wait([lane], lambda lane: isinstance(lane.effect, effect))

    def _exchange(self) -> None:
        for lane in self.lanes:
            if not math.isfinite(float(lane.live.sum())):
                raise lane.diverged(lane.t + 1)
        self._await(Update)
        for lane in self.lanes:
            lane.resume(lane.live)
        self._wait(self.lanes, lambda lane: lane.settled)
        if not self.overlap:
            self.drain()

    @_locked
    def skip(self) -> None:
        """Take part in this step's round without an optimizer step (e.g. one that a GradScaler skipped)."""
        self._begin_step()
        if self._lazy is not None:
            self._lazy.forget()
        self.on_step_end()

    # -- gradients ---------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside exchanges the sum."""
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before

    @_locked
    def on_gradient(self, p: nn.Parameter) -> None:
        """Backward has accumulated the gradient of `p`."""
        self.tick()
        if self._lazy is not None and (p in self._lazy.parked or p in self._stale):
            raise UsageError(
                f"parameter {self.flat.names[p]!r} was used before it had its last update: the modules that "
                "used it in earlier steps were not called. Use --no-overlap (join(overlap=False))."
            )
        if not (self.averages_gradients and self.sync):
            return
        if not self._in_backward:
            if self._reduced:
                raise UsageError(
                    "a second backward() before the end of optimizer.step(): its gradient would be lost. "
                    "To accumulate, put all but the last under `with node.no_sync():`; for a step() that is "
                    "left out, call node.skip(). (With torch.utils.checkpoint, pass use_reentrant=False. An "
                    "optimizer that calls its closure several times, as LBFGS does, needs a method that "
                    "exchanges parameters, such as dpsgd.)"
                )
            self._begin_backward()
            Variable._execution_engine.queue_callback(self._reduce)
        for lane in self._lanes_of[p]:
            if lane not in self._missing:
                raise UsageError(
                    f"the gradient of {self.flat.names[p]!r} came twice in one backward(), and the first has "
                    "been exchanged. (Is the parameter used in several torch.utils.checkpoint segments? Pass "
                    "use_reentrant=False.)"
                )
            self._missing[lane].discard(p)
            if not self._missing[lane] and self.overlap:
                self._hand_over(lane)

    def _forget_failed_backward(self) -> None:
        """A backward that failed halfway (out of memory, say) has not come to its end."""
        inside_backward = torch._C._current_graph_task_id() != -1  # checkpointing: part of it runs again
        if not self._in_backward or inside_backward:
            return
        if len(self._missing) < len(self.lanes):
            raise UsageError(
                "the last backward() has failed halfway, when part of its gradients had been exchanged: this "
                "step cannot begin anew. If all ranks failed alike, call node.skip() in its place; else go "
                "on from a checkpoint. With --no-overlap (join(overlap=False)) nothing is exchanged before "
                "the end of backward()."
            )
        self._in_backward = False

    def _begin_backward(self) -> None:
        self._in_forward, self._in_backward = False, True
        if self._lazy is not None:  # what follows overwrites the last gradients, of unused modules too
            self._stale = set(self._lazy.parked)
            self._end_rounds()
            self.catch_up()
        self._missing = {lane: set(lane.bucket.parameters) for lane in self.lanes}

    def _hand_over(self, lane: Lane) -> None:
        """Give a complete bucket to its generator."""
        if not lane.running:
            lane.start()
        self._wait([lane], lambda lane: isinstance(lane.effect, Gradient))
        self.flat.collect_gradients(lane.bucket.parameters)
        lane.resume(lane.bucket.of(self.flat.need_gradient()))
        self._missing.pop(lane)

    @_locked
    def _reduce(self) -> None:
        """The end of backward: unused parameters count as zero; every gradient becomes final, or hidden."""
        if not self._in_backward:
            self._begin_backward()
        for lane in list(self._missing):
            self._hand_over(lane)
        if self._lazy is None:
            self._end_rounds()
        else:
            self._lazy.hide()
        self._in_backward, self._reduced = False, True

    # -- what comes after step() -------------------------------------------------------------------

    def _park(self, lazy: LazyOptimizer) -> None:
        """Leave to later what has not come, except where no module is known that needs it."""
        homeless = (p for p in self._lanes_of if not lazy.order.is_placed(p))
        self._wait(self._lanes(homeless), _is_done)
        lazy.park(lambda p: any(lane.owed for lane in self._lanes_of[p]))
        if lazy.order.has_news:
            lazy.order.settle()
            self._prioritize()

    def _prioritize(self) -> None:
        if self._lazy is not None:
            position = self._lazy.order.position
            for lane in self.lanes:
                lane.node.priority = min(position[p] for p in lane.bucket.parameters)

    def _apply(self, parameters: Iterable[nn.Parameter]) -> None:
        """Wait for the gradients of those that are parked, and let the optimizer have them."""
        lazy = cast(LazyOptimizer, self._lazy)
        due = [p for p in parameters if p in lazy.parked]
        if not due:
            return
        self._wait(self._lanes(due), _is_done)
        start = time.perf_counter()
        lazy.apply(due)
        if self.stats.trace is not None:
            names = ", ".join(self.flat.names[p] for p in due)
            self.stats.trace.span("compute", f"optimizer: {names}", start, time.perf_counter())

    def _lanes(self, parameters: Iterable[nn.Parameter]) -> Iterable[Lane]:
        return dict.fromkeys(lane for p in parameters for lane in self._lanes_of[p])

    @_locked
    def catch_up(self) -> None:
        """Wait until the model has the whole update of its last step."""
        if self._lazy is not None:
            self._apply(list(self._lazy.parked))

    # -- books -------------------------------------------------------------------------------------

    def _book_traffic(self) -> None:
        self.stats.bytes_sent = self.transport.bytes_sent
        self.stats.messages_sent = self.transport.messages_sent

    # -- state -------------------------------------------------------------------------------------

    @_locked
    def state_dict(self) -> dict[str, Any]:
        """Everything the next rounds depend on; waits for the tails first.

        A round that has begun but awaits the optimizer has changed nothing yet, so it is no part of the
        state: it starts anew at the next forward, and sends the same messages.
        """
        self.drain()
        return {
            "local_steps": self.local_steps,
            "lanes": [
                {
                    "t": lane.t,
                    **{name: v.clone() for name, v in lane.vectors.items()},
                    "state": _clone(lane.state),
                }
                for lane in self.lanes
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        if any(lane.running for lane in self.lanes):
            raise CheckpointError(
                "a round is in progress: load the state after join, before the first forward."
            )
        self.local_steps = state["local_steps"]
        for lane, saved in zip(self.lanes, state["lanes"], strict=True):
            lane.t = saved["t"]
            for name, vector in lane.vectors.items():
                vector.copy_(saved[name])
            _restore(lane.state, saved["state"])


def _is_done(lane: Lane) -> bool:
    return not lane.owed


def _staggered(lane: Lane) -> tuple[int, int]:
    """Lanes that are ready at once are handed over in this order: each rank begins with another owner."""
    node = lane.node
    return node.bucket // node.size, (node.bucket - node.rank - 1) % node.size


def _clone(state: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _clone(value) if isinstance(value, dict) else value.clone() for key, value in state.items()}


def _restore(state: dict[Any, Any], saved: dict[Any, Any]) -> None:
    for key, value in saved.items():
        if isinstance(value, Tensor) and isinstance(state.get(key), Tensor):
            state[key].copy_(value)
        elif isinstance(value, dict):
            _restore(state[key], value)
        else:
            state[key] = value
