"""What the ranks are told to do: a job is a file that all of them read, and rank 0 writes the answer.

python -m experiments.netlab.jobs JOB.json        under mpirun, on the hosts of a laboratory
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.netlab.compute import Compute
from gossip import files


@dataclass(frozen=True)
class Job:
    """One task for all ranks.

    Attributes:
        task: a key of `tasks`.
        answer: the file that rank 0 writes, again after every part.
        compute: see there.
        methods: keys, in order.
        seconds: about how long a measurement is to take.
        options: of the task.
    """

    task: str
    answer: Path
    compute: Compute = field(default_factory=Compute)
    methods: tuple[str, ...] = ()
    seconds: float = 4.0
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON, for `read`."""
        path.write_text(json.dumps({**asdict(self), "answer": str(self.answer)}))

    @classmethod
    def read(cls, path: Path) -> Job:
        """The job that `write` has written."""
        facts = json.loads(path.read_text())
        compute = facts.pop("compute")
        compute["slow"] = tuple((host, factor) for host, factor in compute["slow"])
        return cls(
            **{
                **facts,
                "answer": Path(facts["answer"]),
                "compute": Compute(**compute),
                "methods": tuple(facts["methods"]),
            }
        )

    def reply(self, rank: int, value: Any) -> None:
        """Write the answer so far (rank 0 only); whoever reads it finds a whole one."""
        if rank == 0:
            files.replace_text(self.answer, json.dumps(value))


def tasks() -> dict[str, Callable[[Job], None]]:
    """By name. Imported here, because they start MPI."""
    from experiments.netlab import goodput, losses, measure

    return {"measure": measure.task, "losses": losses.task, "goodput": goodput.task}


def main(argv: Sequence[str] | None = None) -> None:
    """A rank's command."""
    (path,) = sys.argv[1:] if argv is None else argv
    job = Job.read(Path(path))
    tasks()[job.task](job)


if __name__ == "__main__":
    main()
