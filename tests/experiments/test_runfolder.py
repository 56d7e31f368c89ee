"""A run folder is not overwritten unless told so, and a resumed run finds it as its checkpoint left it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from experiments.runfolder import FILES, RunFolder, read_metrics
from gossip.errors import UsageError, WriteError


def used(path: Path) -> RunFolder:
    path.mkdir(exist_ok=True)
    for name in FILES:
        (path / name).write_text("old")
    (path / "checkpoint" / "step-1").mkdir(parents=True)
    return RunFolder(path)


def test_a_new_or_an_empty_folder_is_fine(tmp_path: Path) -> None:
    RunFolder(tmp_path).check(resume=False, overwrite=False)
    new = RunFolder(tmp_path / "a" / "b")
    new.check(resume=False, overwrite=False)
    assert not new.path.exists()
    new.create()
    assert new.path.is_dir()


def test_a_used_folder_is_refused_with_what_to_type(tmp_path: Path) -> None:
    folder = used(tmp_path)
    with pytest.raises(UsageError, match=r"holds a run already. Add --resume .*--overwrite"):
        folder.check(resume=False, overwrite=False)
    folder.check(resume=True, overwrite=False)
    folder.check(resume=False, overwrite=True)
    assert folder.config.read_text() == "old"


def test_overwrite_deletes_a_run_and_nothing_else(tmp_path: Path) -> None:
    folder = used(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    folder.create()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_never_taken(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="holds other files"):
        RunFolder(tmp_path).check(resume=False, overwrite=overwrite)
    with pytest.raises(UsageError, match="is a file"):
        RunFolder(tmp_path / "thesis.tex").check(resume=False, overwrite=overwrite)


def test_rewind_drops_later_lines_a_torn_line_and_the_summary(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30):
        folder.append({"step": step})
    folder.write_json("summary.json", {"diverged": True})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 4')
    folder.rewind(20)
    assert read_metrics(tmp_path) == [{"step": 10}, {"step": 20}]
    assert folder.summary() is None
    folder.rewind(0)
    assert read_metrics(tmp_path) == []


def test_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("summary.json", {"a": 1})

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"summary\.json cannot be written: No space left"):
        folder.write_json("summary.json", {"a": 2})
    assert folder.summary() == {"a": 1}
