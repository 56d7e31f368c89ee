"""What a run says: rank 0 alone, whole lines, and a bar only where someone is watching."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from experiments import progress
from experiments.progress import Progress

ROW = {
    "step": 50,
    "epoch": 0.5,
    "loss": 1.25,
    "lr": 0.1,
    "step_ms": 12.3,
    "exposed_wait_ms": 0.4,
    "exposed_wait_ms_mean": 2.5,
    "virtual_nodes": False,
    "bytes_sent_per_step": 2**20,
}


def test_a_line_per_interval_with_an_eta(capsys: Any) -> None:
    Progress(True, 0, 100).interval(ROW)
    out, err = capsys.readouterr()
    assert "step  50/100" in out and "loss 1.2500" in out and "1.00 MB/step" in out and "ETA 0:00" in out
    assert out.count("\n") == 1 and err == ""


def test_other_ranks_keep_quiet(capsys: Any) -> None:
    quiet = Progress(False, 0, 100)
    quiet.say("hello")
    quiet.tick(3)
    quiet.interval(ROW)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_bar_is_for_terminals(terminal: bool, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    bar = Progress(True, 0, 100)
    for step in (50, 100):
        bar.tick(step)
    err = capsys.readouterr().err
    assert (err.count("━") == 15 + 30) if terminal else err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3723, "1:02:03")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (87, "87 B"), (2048, "2.0 kB"), (3 << 20, "3.00 MB")])
def test_sizes(n: float, text: str) -> None:
    assert progress.size(n) == text
