"""Transports: MPI and virtual nodes behind one interface, and the choice between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.transport.environment import launched

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
        else:
            _world = local.World(1).nodes[0]
    return _world


def started() -> bool:
    """Whether `world` has started MPI, or would find it started, in this process."""
    return _world is not None
