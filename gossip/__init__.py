"""Decentralized training on MPI: every rank trains its own model and gossips with its neighbours."""

from gossip.errors import GossipError, UsageError
from gossip.options import add_arguments, join_options
from gossip.session import Session, join
from gossip.transport import Transport, world
from gossip.transport.local import launch

__all__ = [
    "GossipError",
    "Session",
    "Transport",
    "UsageError",
    "add_arguments",
    "join",
    "join_options",
    "launch",
    "world",
]
