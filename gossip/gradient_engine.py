"""Rounds of methods that exchange gradients, bucket by bucket, inside backward.

Every gradient is final when `backward()` returns. Methods that post in an order of their own (P3) go on into
the next forward instead, which waits for them module by module.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn
from torch.autograd import Variable

from gossip.edits import Edits
from gossip.effects import Gradient, Node
from gossip.engine import Engine, is_done, locked
from gossip.errors import UsageError
from gossip.lane import Lane
from gossip.lazy import LazyOptimizer


@dataclass(eq=False, repr=False)
class GradientEngine(Engine):
    """Exchanges while backward is still producing gradients.

    Args:
        lazy: applies what arrives after `step()`. Without it every gradient is final when backward returns.
        held: the parameters of the optimizer that was given to `join`.
            The others are those of `Engine`.
    """

    averages_gradients: ClassVar[bool] = True

    lazy: LazyOptimizer | None
    held: Collection[nn.Parameter]

    def __post_init__(self, nodes: Iterable[Node]) -> None:
        super().__post_init__(nodes)
        self._sync = True  # False inside no_sync()
        self._in_forward = False  # lanes may enter the next round
        self._in_backward = False
        self._reduced = False  # this step's gradients have been handed over
        self._edits = Edits(self.flat.gradient) if self.algorithm.refuses_edits else None
        self._skipped = set[int]()  # steps that this rank has left out
        self._missing: dict[Lane, set[nn.Parameter]] = {}
        self._stale: set[nn.Parameter] = set()  # had their last update only after this step's forward
        self._lanes_of: defaultdict[nn.Parameter, list[Lane]] = defaultdict(list)
        for lane in sorted(self.lanes, key=_staggered):
            for p in lane.bucket.parameters:
                self._lanes_of[p].append(lane)
        self._prioritize()

    @property
    def moves_in_forward(self) -> bool:
        return self.algorithm.sends_messages  # an exact mean ends with backward

    @property
    def applying(self) -> bool:  # type: ignore[override]
        return self.lazy is not None and self.lazy.applying

    @locked
    def on_forward(self) -> None:
        self._forget_failed_backward()
        self.tick()
        self.begin()
        self._in_forward = self.lazy is not None

    @locked
    def on_module(self, module: nn.Module, learning: bool) -> None:
        super().on_module(module, learning)
        if self.lazy is not None:
            if learning:
                self.lazy.order.saw(module)
                self._apply(self.lazy.order.needs(module))
            else:
                self.catch_up()

    def _arrived_for(self, lane: Lane) -> None:
        super()._arrived_for(lane)
        if self._in_forward and not lane.running:
            lane.start()

    # -- backward ----------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside exchanges the sum."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    @locked
    def on_gradient(self, p: nn.Parameter) -> None:
        super().on_gradient(p)
        if self.lazy is not None and (p in self.lazy.parked or p in self._stale):
            raise UsageError(
                f"parameter {self.flat.names[p]!r} was used before it had its last update: the modules that "
                "used it in earlier steps were not called. Use --no-overlap (join(overlap=False))."
            )
        if self._reduced:
            raise UsageError(
                "a second backward() before the end of optimizer.step(): its gradient would be lost. To "
                "accumulate, put all but the last under `with node.no_sync():`; for a step() that is left "
                "out, by a GradScaler perhaps, call node.skip(). (With torch.utils.checkpoint, pass "
                "use_reentrant=False. An optimizer that calls its closure several times, as LBFGS does, "
                "needs a method that exchanges parameters, such as dpsgd.)"
            )
        if not self._sync:
            return
        if not self._in_backward:
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
        if self.lazy is not None:  # what follows overwrites the last gradients, of unused modules too
            self._stale = set(self.lazy.parked)
            self._end_rounds()
            self.catch_up()
        self._missing = {lane: set(lane.bucket.parameters) for lane in self.lanes}

    @torch.no_grad()  # backward(create_graph=True) would have the exchange in the graph
    def _hand_over(self, lane: Lane) -> None:
        """Give a complete bucket to its generator."""
        if not lane.running:
            lane.start()
        self._wait([lane], lambda lane: isinstance(lane.effect, Gradient))
        self.flat.collect_gradients(lane.bucket.parameters)
        lane.resume(lane.bucket.of(self.flat.gradient))
        self._missing.pop(lane)

    @locked
    def _reduce(self) -> None:
        """The end of backward: unused parameters count as zero; every gradient becomes final, or hidden."""
        if not self._in_backward:
            self._begin_backward()
        for lane in list(self._missing):
            self._hand_over(lane)
        if self.lazy is None:
            self._end_rounds()
        else:
            self.lazy.hide()
        self._in_backward, self._reduced = False, True
        if self._edits is not None:
            self._edits.final()

    # -- the optimizer's step ----------------------------------------------------------------------

    @locked
    def on_step_begin(self, has_closure: bool = False) -> None:
        if not has_closure:
            self._forget_failed_backward()
        self._begin_step(has_closure)

    def _begin_step(self, has_closure: bool = False) -> None:
        self.flat.check_attached()
        if not self._reduced and not has_closure:
            self._reduce()  # no backward in this step: what the parameters have as gradients
        self._check_edits()
        if self.lazy is not None:
            self._park(self.lazy)

    @locked
    def on_step_end(self) -> None:
        if not self._reduced:
            raise UsageError(
                "optimizer.step(closure): the closure has not called backward() (outside of no_sync), "
                "so this step has no gradient to exchange. Call it there, or before step() without it."
            )
        self._check_skipped()
        self._reduced = False
        self._stale.clear()
        if self.lazy is not None:
            self.lazy.check()
        if not self.outbox.posting.plain:  # as those will be that come later: see LazyOptimizer
            for p in self.held:
                p.grad = None
        self._end_step()

    @locked
    def skip(self) -> None:
        if not self._reduced:
            for p in self.flat.names:  # no backward: what is there is the last mean, and not to be sent again
                p.grad = None
        self._begin_step()
        self._skipped.add(self._step)
        self.transport.note("skipped", [self._run, self._step])
        if self.lazy is not None:
            self.lazy.forget()
        self.on_step_end()

    def _check_edits(self) -> None:
        """Some methods have already used up what the user changes here; told once."""
        if self._edits is None or not self._reduced or not self._edits.found():
            return
        if self.transport.rank == 0:
            why = self.algorithm.refuses_edits
            warnings.warn(f"the gradient was written to between backward() and step(): {why}.", stacklevel=2)

    @property
    def _step(self) -> int:
        """The gradient methods' step that is being made, from 1: its round on every bucket."""
        return self.lanes[0].node.t

    def _check_skipped(self) -> None:
        """A step that one rank leaves out and another makes: from then on their parameters would differ."""
        for j, (run, t) in self.transport.notes.get("skipped", {}).items():
            if run == self._run and t <= self._step and t not in self._skipped:
                raise UsageError(
                    f"rank {self.transport.rank} has made step {t}, for which rank {j} called node.skip(): "
                    f"their parameters are no longer equal. With {self.algorithm.name} all ranks skip the "
                    "same steps; the final gradient, which is equal on all of them, can decide."
                )

    # -- what comes after step() -------------------------------------------------------------------

    def _park(self, lazy: LazyOptimizer) -> None:
        """Leave to later what has not come, except what no module is known to need, or another optimizer."""
        homeless = (p for p in self._lanes_of if p not in self.held or not lazy.order.is_placed(p))
        self._wait(self._lanes(homeless), is_done)
        lazy.park(lambda p: any(lane.owed for lane in self._lanes_of[p]))
        if lazy.order.has_news:
            lazy.order.settle()
            self._prioritize()

    def _prioritize(self) -> None:
        if self.lazy is not None:
            position = self.lazy.order.position
            for lane in self.lanes:
                lane.node.priority = min(position[p] for p in lane.bucket.parameters)

    def _apply(self, parameters: Iterable[nn.Parameter]) -> None:
        """Wait for the gradients of those that are parked, and let the optimizer have them."""
        lazy = cast(LazyOptimizer, self.lazy)
        due = [p for p in parameters if p in lazy.parked]
        if not due:
            return
        self._wait(self._lanes(due), is_done)
        start = time.perf_counter()
        lazy.apply(due)
        if self.stats.trace is not None:
            names = ", ".join(self.flat.names[p] for p in due)
            self.stats.trace.span("compute", f"optimizer: {names}", start, time.perf_counter())

    def _lanes(self, parameters: Iterable[nn.Parameter]) -> Iterable[Lane]:
        return dict.fromkeys(lane for p in parameters for lane in self._lanes_of[p])

    @locked
    def catch_up(self) -> None:
        if self.lazy is not None:
            self._apply(list(self.lazy.parked))


def _staggered(lane: Lane) -> tuple[int, int]:
    """Lanes that are ready at once are handed over in this order: each rank begins with another owner."""
    node = lane.node
    return node.bucket // node.size, (node.bucket - node.rank - 1) % node.size
