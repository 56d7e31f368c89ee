"""A file is there whole or not at all, and what keeps it from being written is said in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossip import files
from gossip.errors import WriteError

TOO_LARGE = """
import resource, sys
from pathlib import Path
import torch
from gossip import files
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as a disk that is nearly full
files.replace(Path(sys.argv[1]), lambda file: torch.save(torch.zeros(1_000_000), file))
"""


def test_new_content_replaces_old(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    files.replace_text(path, "old")
    files.replace(path, lambda file: torch.save(torch.ones(2), file))
    assert torch.equal(torch.load(path, weights_only=True), torch.ones(2))
    files.replace_text(path, "naïve\n")
    assert path.read_text(encoding="utf-8") == "naïve\n"
    assert list(tmp_path.iterdir()) == [path]


def test_without_room_the_old_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    files.replace_text(path, "old")
    job = subprocess.run(
        [sys.executable, "-c", TOO_LARGE, str(path)], capture_output=True, text=True, check=False
    )
    assert f"WriteError: {path} cannot be written: File too large" in job.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "x"
    with pytest.raises(WriteError, match=rf"{path} cannot be written: No such file"):
        files.replace_text(path, "x")


def test_other_errors_pass(tmp_path: Path) -> None:
    def fails(file: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.replace(tmp_path / "x", fails)
    assert list(tmp_path.iterdir()) == []
