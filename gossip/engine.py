"""Drives the algorithms' generators: when a round starts, who resumes it, what overlaps what.

A round on one bucket is a `Lane`. Parameter methods start their round at the forward pass (so that what they
send from x travels during forward and backward), get the optimizer's result at the end of `step()`, and after
`settled` leave a tail that finishes during the next forward and backward. Gradient methods run inside
backward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn
from torch.autograd import Variable

from compressors import NonFiniteError
from gossip.algorithms.base import Algorithm, Steps
from gossip.effects import Arrival, Effect, Gradient, Node, Receive, Settled, Update
from gossip.errors import CheckpointError, DivergedError, PeerLostError, UsageError, WatchdogError
from gossip.flat import Bucket, FlatModel
from gossip.stats import Stats
from gossip.transport.base import Transport

TICK_SECONDS = 5e-3
"""The shortest time between two polls from hooks: a poll may yield the core, and hooks are many."""


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
        self.t = 0
        self.settled = True
        self.effect: Effect | None = None
        self._steps: Steps | None = None

    @property
    def running(self) -> bool:
        """Whether a round is in progress."""
        return self._steps is not None

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
            raise self.diverged() from error

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

    def diverged(self) -> DivergedError:
        """Tell the others that this bucket holds NaN or infinity; the error to raise here."""
        where = {"rank": self.node.rank, "round": self.node.t, "bucket": self.node.bucket}
        self.node.transport.note("diverged", where)
        return _diverged(where)


def _diverged(where: dict[str, int]) -> DivergedError:
    return DivergedError(
        f"rank {where['rank']}, round {where['round']}, bucket {where['bucket']}: NaN or infinity in the "
        "parameters or gradients. Training has diverged: lower the learning rate, warm up, or take a finer "
        "compressor."
    )


class Hook:
    """Calls the engine from a hook of torch. A copy or pickle of it does nothing: models stay copyable."""

    def __init__(self, call: Callable[..., None] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        if self._call is not None:
            self._call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(None)

    def __reduce__(self) -> tuple[type[Hook], tuple[None]]:
        return Hook, (None,)


class Engine:
    """One rank's rounds.

    Args:
        overlap: False runs the same generators to their end at once: the same numbers, no overlap.
        timeout: seconds without an arrival before a `WatchdogError`.
    """

    def __init__(
        self,
        flat: FlatModel,
        algorithm: Algorithm,
        nodes: Iterable[Node],
        transport: Transport,
        stats: Stats,
        overlap: bool,
        timeout: float,
    ) -> None:
        self.flat, self.algorithm, self.transport, self.stats = flat, algorithm, transport, stats
        self.overlap, self.timeout = overlap, timeout
        self.lanes = [
            Lane(bucket, flat, algorithm, node) for bucket, node in zip(flat.buckets, nodes, strict=True)
        ]
        self.every: int = getattr(algorithm, "every", 1)
        self.local_steps = 0  # taken since the last exchange
        self._next_tick = 0.0
        self.sync = True  # False inside no_sync()
        self._reduced = False  # this step's gradients are final
        self._in_backward = False
        self._missing: dict[Lane, set[nn.Parameter]] = {}
        self._lane_of = {p: lane for lane in self.lanes for p in lane.bucket.parameters}

    @property
    def averages_gradients(self) -> bool:
        """Whether this is a gradient method."""
        return self.algorithm.kind == "gradient"

    @property
    def round(self) -> int:
        """Rounds finished by every bucket."""
        return min(lane.t for lane in self.lanes)

    # -- progress ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let messages move and tails run on, now and then; never waits. Every hook calls it."""
        now = time.perf_counter()
        if now < self._next_tick:
            return
        self._next_tick = now + TICK_SECONDS
        self.transport.poll()
        for lane in self.lanes:
            lane.advance()

    def begin(self) -> None:
        """Start the next round on every bucket whose last one has ended."""
        for lane in self.lanes:
            if not lane.running:
                lane.start()

    def _wait(self, lane: Lane, reached: Callable[[], bool]) -> None:
        """Wait until `reached`, letting all lanes run on; the time is exposed: nothing is left to compute."""
        if reached():
            return
        start = time.perf_counter()
        busy = self.stats.encode + self.stats.decode + self.stats.mix
        late: dict[int, float] = {}

        def ready() -> bool:
            for other in self.lanes:
                if isinstance(other.effect, Receive):
                    late.update(dict.fromkeys(other.effect.missing(), time.perf_counter() - start))
                other.advance()
            self._check_peers(lane)
            return reached()

        arrived = self.transport.wait(ready, self.timeout)
        busy = self.stats.encode + self.stats.decode + self.stats.mix - busy
        self.stats.exposed += time.perf_counter() - start - busy
        for j, seconds in late.items():
            self.stats.waited_for(j, seconds)
        if not arrived:
            raise WatchdogError(self._stuck(lane))

    def _check_peers(self, lane: Lane) -> None:
        for j, where in self.transport.notes.get("diverged", {}).items():
            if j != self.transport.rank:
                raise _diverged(where)
        departed = self.transport.departed
        if departed and isinstance(lane.effect, Arrival) and not lane.effect.ready:
            missing = lane.effect.missing()
            gone = departed.keys() if missing is None else departed.keys() & missing
            if gone:
                j = min(gone)
                raise PeerLostError(
                    f"rank {self.transport.rank}, round {lane.node.t}, bucket {lane.node.bucket}: "
                    f"waits for rank {j}, which has left ({departed[j]}). Did every rank run the same "
                    "number of steps? node.shard(dataset, batch_size) gives each the same."
                )

    def _stuck(self, lane: Lane) -> str:
        where = f"rank {self.transport.rank}, round {lane.node.t}, bucket {lane.node.bucket}"
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

    def drain(self) -> None:
        """Wait until the tails of all rounds have ended (a round that awaits the optimizer is left alone)."""
        for lane in self.lanes:
            if lane.settled:
                self._wait(lane, lambda lane=lane: not lane.running)  # type: ignore[misc]

    # -- hooks on the model and the optimizer ------------------------------------------------------

    def on_forward(self) -> None:
        """The model starts a training forward."""
        self.tick()
        if self.overlap or self.averages_gradients:
            self.begin()

    def on_step_begin(self) -> None:
        """The optimizer is about to step."""
        self.flat.check_attached()
        if self.averages_gradients:
            if not self._reduced:
                self._reduce()  # no backward in this step: a zero gradient
        elif self.overlap and self.local_steps + 1 == self.every:
            self._await(Update)

    def on_step_end(self) -> None:
        """The optimizer has stepped."""
        if self.averages_gradients:
            self._reduced = False
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
            self._wait(lane, lambda lane=lane: not lane.running or isinstance(lane.effect, effect))  # type: ignore[misc]
            if not lane.running:
                lane.start()
                self._wait(lane, lambda lane=lane: isinstance(lane.effect, effect))  # type: ignore[misc]

    def _exchange(self) -> None:
        for lane in self.lanes:
            if not math.isfinite(float(lane.live.sum())):
                raise lane.diverged()
        self._await(Update)
        for lane in self.lanes:
            lane.resume(lane.live)
        for lane in self.lanes:
            self._wait(lane, lambda lane=lane: lane.settled)  # type: ignore[misc]
        if not self.overlap:
            self.drain()

    def skip(self) -> None:
        """Take part in this step's round without an optimizer step (e.g. one that a GradScaler skipped)."""
        self.on_step_begin()
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

    def on_gradient(self, p: nn.Parameter) -> None:
        """Backward has accumulated the gradient of `p`."""
        self.tick()
        if not (self.averages_gradients and self.sync):
            return
        if not self._in_backward:
            if self._reduced:
                raise UsageError(
                    "a second backward() before optimizer.step(): its gradient would be lost. Put all but "
                    "the last under `with node.no_sync():` to accumulate. (With torch.utils.checkpoint, pass "
                    "use_reentrant=False.)"
                )
            self._in_backward = True
            self._missing = {lane: set(lane.bucket.parameters) for lane in self.lanes}
            Variable._execution_engine.queue_callback(self._reduce)
        lane = self._lane_of[p]
        self.flat.collect_gradient(p)
        self._missing[lane].discard(p)
        if not self._missing[lane] and self.overlap:
            self._hand_over(lane)

    def _hand_over(self, lane: Lane) -> None:
        """Give a complete bucket to its generator."""
        if not lane.running:
            lane.start()
        self._wait(lane, lambda: isinstance(lane.effect, Gradient))
        lane.resume(lane.bucket.of(self.flat.need_gradient()))
        self._missing.pop(lane)

    def _reduce(self) -> None:
        """The end of backward: unused parameters count as zero, and every gradient becomes final."""
        if not self._in_backward:
            self._missing = {lane: set(lane.bucket.parameters) for lane in self.lanes}
        for lane, parameters in list(self._missing.items()):
            for p in parameters:
                self.flat.collect_gradient(p)
            self._hand_over(lane)
        for lane in self.lanes:
            self._wait(lane, lambda lane=lane: not lane.running)  # type: ignore[misc]
        self._in_backward, self._reduced = False, True

    # -- books -------------------------------------------------------------------------------------

    def _book_traffic(self) -> None:
        self.stats.bytes_sent = self.transport.bytes_sent
        self.stats.messages_sent = self.transport.messages_sent

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything the next rounds depend on; waits for the tails first.

        A round that has begun but awaits the optimizer has changed nothing yet, so it is no part of the
        state: it starts anew at the next forward, and sends the same messages.
        """
        self.drain()
        return {
            "local_steps": self.local_steps,
            "lanes": [
                {"t": lane.t, "x": lane.x.clone(), "live": lane.live.clone(), "state": _clone(lane.state)}
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
            lane.live.copy_(saved["live"])
            lane.x.copy_(saved["x"])
            _restore(lane.state, saved["state"])


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
