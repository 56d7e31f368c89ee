"""A command of your own as an MPI job, one rank per host, on a shaped network.

python -m experiments.netlab run --hosts 4 --bandwidth 20Mbit --latency 20ms -- python train.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.netlab.lab import Lab
from experiments.netlab.network import Network
from gossip.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``run`` has beside the network."""
    add = parser.add_argument
    add("--bandwidth", required=True, metavar="RATE", help="what a host may send, such as 20Mbit")
    add("--latency", required=True, metavar="TIME", help="one way, such as 5ms")
    add("--jitter", default="0ms", metavar="TIME", help="a packet takes up to so much more (%(default)s)")
    add("--hosts", type=int, default=4, metavar="N", help="and MPI ranks (%(default)s)")
    add("--congestion", metavar="NAME", help="TCP's congestion control (the machine's own)")
    add("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what every rank runs")


@dataclass(frozen=True)
class OwnJob:
    """The job; its output goes to the terminal, and it may take as long as it likes.

    Raises:
        UsageError: no command.
    """

    hosts: int
    network: Network
    command: Sequence[str]

    def __post_init__(self) -> None:
        if not self.command:
            raise UsageError("there is no command to run: end with it, as in … -- python train.py")

    def run(self) -> None:
        """Only inside `isolation.run`. Raises `GossipError` if the job fails."""
        with Lab(self.hosts, self.network) as lab:
            lab.mpirun(self.command, timeout=None)
