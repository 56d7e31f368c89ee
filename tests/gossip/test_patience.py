"""How long a rank waits in silence."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from gossip.patience import Patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now.seconds)
    return now


@pytest.mark.parametrize("news", ["arrival", "fewer left", "none"])
def test_it_ends_after_silence_only(clock: SimpleNamespace, news: str) -> None:
    transport: Any = SimpleNamespace(arrived=7)
    patience, left = Patience(transport, 10.0), 3
    assert not patience.is_out(left)
    clock.seconds += 9
    transport.arrived += news == "arrival"
    left -= news == "fewer left"
    assert not patience.is_out(left)
    clock.seconds += 9
    assert patience.is_out(left) == (news == "none")
    clock.seconds += 2
    assert patience.is_out(left)
