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
    assert 0 < len(small) <= len(full)
    assert {p.args.seed for p in small} == {p.args.seed for p in full}
    assert max(p.args.epochs for p in small) < min(p.args.epochs for p in full)
    methods, also = ({p.args.algorithm.partition(":")[0] for p in points} for points in (small, full))
    assert methods == also
    assert {p.args.compressor for p in small} <= {p.args.compressor for p in full}


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_papers_are_named_with_what_is_different(path: Path) -> None:
    about = SweepFile.read(path).about
    assert about["source"] and len(about["deviations"]) >= 2
    assert "2018" in about["source"] or "2020" in about["source"] or "Sun et al." in about["source"]
    head = path.read_text().partition('model = "')[0]
    assert f"python -m gossip sweep experiments/paper/{path.name}" in head or "tuned.toml" in head
    assert SweepFile.read(path).tune["lr"]


def test_all_of_koloskovas_table_is_in_full() -> None:
    path = EXPERIMENTS / "paper" / "choco-table1.toml"
    small, full = (
        {(p.args.algorithm, p.args.compressor) for p in SweepFile.read(path, full).points([1])}
        for full in (False, True)
    )
    assert small < full
    wanted = {f"per-tensor:({codec})" for codec in ("randk:0.5", "randk:0.01", "topk:0.5")}
    assert {codec for _, codec in full - small} == wanted
    assert f"{len(full)} runs of 300 epochs" in (EXPERIMENTS.parent / "docs" / "experiments.md").read_text()


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
