"""What the launcher's environment variables tell about this process, without starting MPI.

`gossip.world` imports mpi4py only when `launched()`: a script started by plain ``python`` runs as one node
and needs no MPI at all. Error printing asks `env_rank` before any transport exists.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class _Launcher(NamedTuple):
    """The variables by which one family of launchers numbers its processes; alternatives in order."""

    rank: tuple[str, ...]
    size: tuple[str, ...]


# First match wins, so the specific ones come first. SLURM_PROCID alone says nothing: a batch script has it
# too, and a process that srun started without a PMI is alone in its MPI_COMM_WORLD. Launchers also tell local
# ranks, but those of Open MPI need not be in the order of the ranks.
_LAUNCHERS = (
    # Open MPI's mpirun and prterun
    _Launcher(("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    # MVAPICH
    _Launcher(("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"), ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE")),
    # Hydra (MPICH, Intel MPI), srun --mpi=pmi2
    _Launcher(("PMI_RANK",), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    # srun --mpi=pmix
    _Launcher(("PMIX_RANK",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


def _first(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def _launcher() -> _Launcher | None:
    return next((each for each in _LAUNCHERS if _first(each.rank) is not None), None)


def launched() -> bool:
    """Whether an MPI launcher (mpirun, mpiexec, srun with a PMI) started this process."""
    return _launcher() is not None


def env_rank() -> int:
    """This process's rank; 0 when no launcher started it."""
    launcher = _launcher()
    return 0 if launcher is None else _first(launcher.rank) or 0


def env_size() -> int:
    """Number of processes of the job; 1 when no launcher started it, or when it does not say."""
    launcher = _launcher()
    return 1 if launcher is None else _first(launcher.size) or 1
