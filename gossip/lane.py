"""A bucket's round in progress: its generator, what it waits for, the vectors and state that it changes."""

from __future__ import annotations

from typing import Any, cast

from compressors import NonFiniteError
from gossip.algorithms.base import Algorithm, Steps
from gossip.effects import Arrival, Effect, Gradient, Node, Settled
from gossip.errors import DivergedError
from gossip.flat import Bucket, FlatModel


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
        self._vectors = {"live": self.live} | ({} if self.x is self.live else {"x": self.x})
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
        step = t * self.algorithm.every
        where = {"rank": self.node.rank, "round": t, "bucket": self.node.bucket, "step": step}
        self.node.transport.note("diverged", where)
        return diverged(where)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that its next round depends on."""
        vectors = {name: v.clone() for name, v in self._vectors.items()}
        return {"t": self.t, **vectors, "state": _clone(self.state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self.t = saved["t"]
        for name, vector in self._vectors.items():
            vector.copy_(saved[name])
        _restore(self.state, saved["state"])


def diverged(where: dict[str, int], second_hand: bool = False) -> DivergedError:
    """The error about what `Lane.diverged` has told, here or on another rank (`second_hand`)."""
    error = DivergedError(
        f"rank {where['rank']}, round {where['round']}, bucket {where['bucket']}: NaN or infinity in the "
        "parameters or gradients. Training has diverged: lower the learning rate, warm up, or take a finer "
        "compressor."
    )
    error.second_hand = second_hand
    return error


def _clone(state: dict[Any, Any]) -> dict[Any, Any]:
    return {key: _clone(value) if isinstance(value, dict) else value.clone() for key, value in state.items()}


def _restore(state: dict[Any, Any], saved: dict[Any, Any]) -> None:
    for key, value in saved.items():
        if isinstance(value, dict):
            _restore(state[key], value)
        else:
            state[key].copy_(value)
