"""Everything that a run's next step depends on, to disk and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from experiments.workloads import Workload
from gossip import checkpoint
from gossip.errors import UsageError
from gossip.session import Session


class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> object: ...


class RunState:
    """One rank's state: `parts` by name, the session, the global random streams, and which data it is of."""

    def __init__(self, folder: Path, node: Session, workload: Workload, **parts: Stateful) -> None:
        self._folder, self._node, self._workload, self._parts = folder, node, workload, parts
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
        state["data"] = self._workload.digest
        checkpoint.save(self._folder, step, self._node.world, state, self._about)

    def load(self) -> int:
        """Collective: go back to the newest checkpoint; its step, 0 if there is none.

        Returns when all ranks have done so: only then may the caller touch what the run has written since.

        Raises:
            CheckpointError: it cannot be read, or belongs to another run.
            UsageError: the run was started with other data.
        """
        found = checkpoint.load(self._folder, self._node.world, self._about)
        if found is None:
            return 0
        step, state = found
        if state.get("data", self._workload.digest) != self._workload.digest:  # older checkpoints lack it
            raise UsageError(
                f"the data of {self._workload.data_flag} are not those, or not read in the way, that the run "
                "was started with: give those, or start another run with another --out"
            )
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self._node.load_state_dict(state["node"])
        checkpoint.set_rng_state(state["random"], self._node.device)
        self._node.world.barrier()
        return step
