"""The notebook-style example runs from top to bottom, shortened, and leaves its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "experiments" / "notebook.py"


@pytest.mark.filterwarnings("ignore:naive")
def test_all_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    text = SCRIPT.read_text()
    constants = "NODES, STEPS, EVERY = 8, 96, 8"
    assert text.count("# %%") >= 6 and constants in text
    cells: dict[str, object] = {"__name__": "cells"}
    exec(text.replace(constants, "NODES, STEPS, EVERY = 3, 4, 2"), cells)
    histories = cells["histories"]
    assert isinstance(histories, dict) and len(histories) == 4
    assert all([step for step, _, _ in history] == [2, 4] for history in histories.values())
    assert (tmp_path / "runs/notebook.png").read_bytes().startswith(b"\x89PNG")
