"""Settings of Open MPI: of its TCP for every rank, and of mpirun for a small machine.

They are environment variables; other MPI libraries ignore them, and options of mpirun (`--mca`) win.
"""

from __future__ import annotations

import shlex

EAGER_BYTES = 4 << 20
"""Messages up to this length are sent at once. Open MPI announces longer ones and sends them when their
receiver consents: two more trips through the network, and on the one TCP connection of two ranks the consent
queues behind a whole message of the other direction, so an exchange both ways gets little more than half of
the rate. What comes before this rank has posted its receive waits in MPI's memory: of messages at most one
per peer and tag, because sends are synchronous and the next waits for the last; of a mean on the ring at most
its length. Costs 64 MiB of address space."""

SEND_FLAGS = "send,inplace,need-ack,need-csum,hetero-rdma"
"""Open MPI's own flags for TCP but `put`: longer messages then go in fragments of `EAGER_BYTES`, and not
whole, so that a consent waits behind three fragments at most."""

TCP_ENVIRONMENT = {
    "OMPI_MCA_btl_tcp_eager_limit": str(EAGER_BYTES),
    "OMPI_MCA_btl_tcp_rndv_eager_limit": str(EAGER_BYTES),
    "OMPI_MCA_btl_tcp_max_send_size": str(EAGER_BYTES),
    "OMPI_MCA_btl_tcp_flags": SEND_FLAGS,
}
"""What the transport sets in every rank, unless it is set already, before MPI starts."""

MPIRUN_ENVIRONMENT = {
    # Containers and rented machines often have no other user than root.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # More ranks than cores, each free to run on any core.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # The same for Open MPI 4, which has other names for them.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # A rank that waits inside MPI leaves the core to one that computes.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""For mpirun, as root and with more ranks than cores; of Open MPI 5 and 4."""


def shell_exports() -> str:
    """`MPIRUN_ENVIRONMENT` as lines for a POSIX shell."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in MPIRUN_ENVIRONMENT.items()]
    return "\n".join(["# for Open MPI's mpirun", *lines])
