"""How long a rank waits for the others in silence."""

from __future__ import annotations

import time

from gossip.transport.base import Transport


class Patience:
    """Is out when for `timeout` seconds nothing has arrived and what the caller waits for has not changed."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._transport, self._timeout = transport, timeout
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def is_out(self, left: int = 0) -> bool:
        """Asked again and again; `left` is how much the caller still waits for."""
        now, state = time.perf_counter(), (left, self._transport.arrived)
        if state != self._seen:
            self._seen, self._since = state, now
        return now - self._since > self._timeout
