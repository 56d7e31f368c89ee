"""Ranks that take themselves for hosts of a network."""

from __future__ import annotations

from gossip.transport.base import Transport


def apart(transport: Transport) -> None:
    """From now on as if this rank had a host of its own: long means go around the ring. All ranks alike."""
    transport.local_size = 1
