"""Decentralized training on MPI: every rank trains its own model and gossips with its neighbours.

Names are loaded when they are first used, so that commands which need no torch start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gossip.errors import GossipError, UsageError
    from gossip.options import add_arguments, join_options
    from gossip.session import Session, join
    from gossip.transport import world
    from gossip.transport.base import Transport
    from gossip.transport.local import launch
else:
    _HOMES = {
        "GossipError": "gossip.errors",
        "Session": "gossip.session",
        "Transport": "gossip.transport.base",
        "UsageError": "gossip.errors",
        "add_arguments": "gossip.options",
        "join": "gossip.session",
        "join_options": "gossip.options",
        "launch": "gossip.transport.local",
        "world": "gossip.transport",
    }

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'gossip' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
