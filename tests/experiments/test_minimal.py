"""The example of a script of one's own: short, and runs as it stands on any number of nodes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import gossip
from experiments import minimal


def accuracies(output: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in output.splitlines() if line.startswith("epoch")]


@pytest.mark.parametrize("nodes", [1, 3])
def test_it_learns(nodes: int, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["minimal.py", "--algorithm", "dcd", "--compressor", "qsgd:bits=8"])
    gossip.launch(minimal.main, nodes)
    out = capsys.readouterr().out
    assert len(accuracies(out)) == 5 and accuracies(out)[-1] > 0.9
    assert f"{nodes} nodes" in out


@pytest.mark.mpi
def test_it_runs_from_anywhere(mpirun: Any, tmp_path: Path) -> None:
    """As a file outside the repository, with gossip on the path as after pip install."""
    script = tmp_path / "mine.py"
    script.write_text(Path(minimal.__file__).read_text())
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    ran = mpirun(2, "-c", code, "--algorithm", "choco", "--compressor", "sign")
    assert ran.returncode == 0, ran.stderr
    assert len(accuracies(ran.stdout)) == 5


def test_it_is_short() -> None:
    source = Path(minimal.__file__).read_text()
    assert len([line for line in source.splitlines() if line.strip()]) <= 40
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert all(not (node.module or "").startswith("experiments") for node in imported)
