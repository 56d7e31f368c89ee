"""docs/extend.md stays true: its six snippets, put where it says, train together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extend.md").read_text()


def section(title: str) -> tuple[str, list[str]]:
    """The snippet of a section, and what is in backquotes around it."""
    text = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    snippets = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(snippets) == 1, title
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    return snippets[0], re.findall(r"`([^`]+)`", prose)


def one(words: list[str], start: str) -> str:
    found = [word for word in words if word.startswith(start)]
    assert len(found) == 1, f"{found} start with {start!r}"
    return found[0]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text + "\n")


def test_the_six_extensions_train_together(tmp_path: Path) -> None:
    for package in ("gossip", "topologies", "compressors", "experiments"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)

    for title, folder, name in (
        ("A topology", "topologies", "chordal"),
        ("A codec", "compressors", "int8"),
        ("A method", "gossip/algorithms", "my_dcd"),
    ):
        snippet, words = section(title)
        (tmp_path / folder / f"{name}.py").write_text(snippet)
        append(tmp_path / folder / "__init__.py", one(words, "from "))

    append(tmp_path / "topologies" / "weights.py", section("A mixing rule")[0])

    for title, folder, name, beside in (
        ("A model", "experiments/models", "tiny", '"mlp": mlp'),
        ("A data set", "experiments/data", "stripes", '"synthetic": Synthetic'),
    ):
        snippet, words = section(title)
        (tmp_path / folder / f"{name}.py").write_text(snippet)
        init = tmp_path / folder / "__init__.py"
        entry = one(words, f'"{name}"')
        assert beside in words and beside in init.read_text()
        text = init.read_text().replace(beside, f"{beside}, {entry}", 1)
        first = "from __future__ import annotations\n"
        init.write_text(text.replace(first, f"{first}\n{one(words, 'from ')}\n", 1))

    flags = "--model tiny:width=4 --dataset stripes:train=96 --algorithm my-dcd --topology chordal:reach=2"
    flags += " --weights uniform --compressor int8 --nodes 5 --batch-size 4 --epochs 3 --lr 0.05 --out run"
    command = [sys.executable, "-m", "experiments.train", *flags.split()]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["algorithm"], summary["compressor"]) == ("my-dcd", "int8")
    assert summary["messages_sent_per_step"] == 4 and summary["test_accuracy"] > 75
