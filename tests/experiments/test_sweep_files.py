"""The sweep files of this repository: all settings exist, scaled down and in full; deviations are stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.sweep.grid import SweepFile
from gossip.errors import UsageError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPERS = sorted((EXPERIMENTS / "paper").glob("*.toml"))
FILES = [*PAPERS, EXPERIMENTS / "findings.toml", EXPERIMENTS / "cifar10_ring8.toml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_small_and_full_settings_are_runs(path: Path) -> None:
    small, full = (SweepFile.read(path, full).points() for full in (False, True))
    assert 0 < len(small) == len(full)
    for a, b in zip(small, full, strict=True):
        assert a.name.rpartition("-seed")[2] == b.name.rpartition("-seed")[2]
        assert b.args.epochs > a.args.epochs


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_papers_are_named_with_what_is_different(path: Path) -> None:
    about = SweepFile.read(path).about
    assert about["source"] and len(about["deviations"]) >= 2
    assert "2018" in about["source"] or "2020" in about["source"] or "Sun et al." in about["source"]
    head = path.read_text().partition('model = "')[0]
    assert f"python -m gossip sweep experiments/paper/{path.name}" in head or "tuned.toml" in head
    assert SweepFile.read(path).tune["lr"]


def test_the_text_table_is_dense_and_dgc_on_equal_terms() -> None:
    points = SweepFile.read(EXPERIMENTS / "text_lstm.toml").points([1, 2], {"data-file": "words.txt"})
    for momentum in (0, 0.9):
        same = [p for p in points if p.args.momentum == momentum]
        assert len({p.name for p in same}) == 4
        terms = {(p.args.lr, p.args.clip_norm, p.args.epochs, p.args.nesterov, p.args.nodes) for p in same}
        assert len(terms) == 1


def test_a_file_for_config_is_a_sweep_of_one_run() -> None:
    path = EXPERIMENTS / "quickstart.toml"
    assert len(SweepFile.read(path).points()) == 1
    with pytest.raises(UsageError, match=r"no \[full\]"):
        SweepFile.read(path, full=True)
