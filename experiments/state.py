"""Everything that a run's next step depends on, to disk and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from gossip import checkpoint
from gossip.session import Session


class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> object: ...


class RunState:
    """One rank's state: `parts` by name, the session, and the global random streams."""

    def __init__(self, folder: Path, node: Session, **parts: Stateful) -> None:
        self._folder, self._node, self._parts = folder, node, parts
        self._about = {
            "algorithm": str(node.algorithm),
            "topology": node.topology.name,
            "compressor": str(node.compressor),
        }

    def save(self, step: int) -> None:
        """Collective: write a checkpoint of `step`."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        state["node"] = self._node.state_dict()
        state["random"] = checkpoint.rng_state(self._node.device)
        checkpoint.save(self._folder, step, self._node.world, state, self._about)

    def load(self) -> int:
        """Collective: go back to the newest checkpoint; its step, 0 if there is none.

        Returns when all ranks have done so: only then may the caller touch what the run has written since.

        Raises:
            CheckpointError: it cannot be read, or belongs to another run.
        """
        found = checkpoint.load(self._folder, self._node.world, self._about)
        if found is None:
            return 0
        step, state = found
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self._node.load_state_dict(state["node"])
        checkpoint.set_rng_state(state["random"], self._node.device)
        self._node.world.barrier()
        return step
