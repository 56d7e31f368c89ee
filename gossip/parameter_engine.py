"""Rounds of methods that exchange parameters, one every `every` optimizer steps.

A round starts at the forward pass, so that what is sent from x travels during forward and backward, gets the
optimizer's result at the end of `step()`, and after `settled` leaves a tail that finishes during the next
forward and backward.
"""

from __future__ import annotations

from typing import Any, ClassVar

from compressors.base import all_finite
from gossip.effects import Effect, Update
from gossip.engine import Engine, locked


class ParameterEngine(Engine):
    """Exchanges after the optimizer's step.

    Attributes:
        local_steps: taken since the last exchange.
    """

    averages_gradients: ClassVar[bool] = False
    local_steps = 0

    @locked
    def on_forward(self) -> None:
        self.tick()
        if self.overlap:
            self.begin()

    @locked
    def on_step_begin(self, has_closure: bool = False) -> None:
        self.flat.check_attached()
        if self.overlap and self.local_steps + 1 == self.algorithm.every and not has_closure:
            self._await(Update)

    @locked
    def on_step_end(self) -> None:
        self.local_steps += 1
        if self.local_steps == self.algorithm.every:
            self.local_steps = 0
            self._exchange()
        self._end_step()

    @locked
    def skip(self) -> None:
        self.on_step_begin()
        self.on_step_end()

    def _await(self, effect: type[Effect]) -> None:
        """Bring every lane to where it waits for `effect`, starting its round if need be."""
        for lane in self.lanes:
            self._wait([lane], lambda lane: not lane.running or isinstance(lane.effect, effect))
            if not lane.running:
                lane.start()
                self._wait([lane], lambda lane: isinstance(lane.effect, effect))

    def _exchange(self) -> None:
        for lane in self.lanes:
            if not all_finite(lane.live):
                raise lane.diverged(lane.t + 1)
        self._await(Update)
        for lane in self.lanes:
            lane.resume(lane.live)
        self._wait(self.lanes, lambda lane: lane.settled)
        if not self.overlap:
            self.drain()

    def state_dict(self) -> dict[str, Any]:
        return {"local_steps": self.local_steps, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.local_steps = state["local_steps"]
