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
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]


# First match wins, so the specific ones come first. SLURM_PROCID alone says nothing: a batch script has it
# too, and a process that srun started without a PMI is alone in its MPI_COMM_WORLD.
_LAUNCHERS = (
    _Launcher(  # Open MPI's mpirun and prterun
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher(  # MVAPICH
        ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Launcher(  # Hydra (MPICH, Intel MPI), srun --mpi=pmi2
        ("PMI_RANK",),
        ("PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "SLURM_LOCALID"),
        ("MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"),
    ),
    _Launcher(  # srun --mpi=pmix
        ("PMIX_RANK",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        (),
    ),
)


def _first(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def _launcher() -> _Launcher | None:
    return next((each for each in _LAUNCHERS if _first(each.rank) is not None), None)


def _ask(names: str, default: int) -> int:
    launcher = _launcher()
    found = None if launcher is None else _first(getattr(launcher, names))
    return default if found is None else found


def launched() -> bool:
    """Whether an MPI launcher (mpirun, mpiexec, srun with a PMI) started this process."""
    return _launcher() is not None


def env_rank() -> int:
    """This process's rank; 0 when no launcher started it."""
    return _ask("rank", 0)


def env_size() -> int:
    """Number of processes of the job; 1 when no launcher started it, or when it does not say."""
    return _ask("size", 1)


def env_local_rank() -> int:
    """This process's place among those of its host; 0 when unknown."""
    return _ask("local_rank", 0)


def env_local_size() -> int:
    """Number of the job's processes on this host; 1 when unknown."""
    return _ask("local_size", 1)
