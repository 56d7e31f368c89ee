"""What the links between the hosts are like, and how that is told to the kernel and the relay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gossip.errors import UsageError
from gossip.units import show_bandwidth, show_duration

if TYPE_CHECKING:
    from gossip.transport.base import Transport

DEVICE = "net0"
"""The hosts' interface to the shaped network."""

SUBNET = "10.78.0"
"""Host k, from 0, is SUBNET.(k + 1) there: in namespaces of its own, so no other network can clash."""

RELAY_SECONDS = 70e-6
"""What the relay takes by itself, about (measured with its forerunner); taken off the delay."""

FRAME = 1514
QUEUE = 16 << 20


@dataclass(frozen=True)
class Network:
    """Every host's link to a switch that never blocks.

    Attributes:
        bandwidth: bit/s that a host may send, and receive at the same time; None for what the machine can.
        latency: seconds from one host to another, one way.
        jitter: every packet takes up to so many seconds more, at random; packets to a host keep their order.
        congestion: TCP's congestion control on the hosts; None for the machine's own. Away from the machine's
            first network namespace Linux allows only what `allowed_congestion` lists.
    """

    bandwidth: float | None
    latency: float = 0.0
    jitter: float = 0.0
    congestion: str | None = None

    def __str__(self) -> str:
        rate = "unshaped" if self.bandwidth is None else show_bandwidth(self.bandwidth)
        jitter = f" + up to {show_duration(self.jitter)}" if self.jitter else ""
        return f"{rate}, {show_duration(self.latency)}{jitter}"

    @property
    def relay_delay(self) -> float:
        """Seconds that the relay is to keep a packet."""
        return max(0.0, self.latency - RELAY_SECONDS)


def shaping(bandwidth: float | None, device: str = DEVICE) -> list[str]:
    """The `tc` command that limits what `device` sends, replacing what was set before.

    A token bucket, as in Tang et al. Its queue never drops: TCP keeps it short by itself (small queues).
    """
    if bandwidth is None:
        return ["tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "10000"]
    tbf = ["tbf", "rate", f"{bandwidth:.0f}bit", "burst", f"{burst(bandwidth)}b", "limit", f"{QUEUE}b"]
    return ["tc", "qdisc", "replace", "dev", device, "root", *tbf]


def burst(bandwidth: float) -> int:
    """Bytes that a link which was idle takes at once: 2 ms worth, but two frames at least, 68 KB at most.

    So it is hardly faster for a moment. TCP's frames (a millisecond's worth, up to 64 KB) pass whole where
    they fit in; else they are cut, which costs the machine ten times as much computing.
    """
    return max(2 * FRAME, min(int(bandwidth / 8 * 2e-3), 68_000))


def allowed_congestion() -> list[str]:
    """The congestion controls that hosts may use; what the machine uses by default is among them.

    Raises:
        UsageError: this is no Linux, or one that does not say.
    """
    try:
        return Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    except OSError as error:
        raise UsageError(f"the network laboratory needs Linux, with its /proc: {error}.") from None


def steady_congestion() -> str:
    """Reno, where hosts may use it; else the machine's own.

    On these links, which lose nothing, reno sends as fast as the link takes, so that what is measured is the
    methods. bbr paces itself by estimates of rate and round trip, which bursts, and acknowledgements behind
    a burst of the opposite direction, lead astray: an all-reduce may take half as long again, or not.
    """
    if "reno" in allowed_congestion():
        return "reno"
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def address(host: int) -> str:
    """The IPv4 address of host `host` (from 0) on the shaped network."""
    return f"{SUBNET}.{host + 1}"


def peers(world: Transport) -> list[str]:
    """The address of every rank's host. Collective."""
    return [address(int(name.removeprefix("h"))) for name in world.allgather(os.uname().nodename)]
