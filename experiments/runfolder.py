"""The run folder ``--out``: what a run leaves behind, and what it may do to a folder that is already there.

Files: ``config.toml`` (repeats the run), ``env.json``, ``metrics.jsonl``, ``checkpoint/``, ``averaged.pt``,
``training.png``, ``consensus.png``, ``summary.json``; of text also ``vocab.txt``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.runs import read_metrics, read_summary
from gossip import files
from gossip.errors import UsageError

FILES = (
    "env.json",
    "metrics.jsonl",
    "vocab.txt",
    "averaged.pt",
    "training.png",
    "consensus.png",
    "summary.json",
    "config.toml",
)


class RunFolder:
    """Paths and writers. Only rank 0 writes, except for the checkpoints."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    def check(self, resume: bool, overwrite: bool) -> None:
        """Raise `UsageError` where a run must not write. Changes nothing; to be called first."""
        try:
            exists = self.path.exists()
        except OSError as error:
            raise UsageError(f"--out {self.path} cannot be used: {error.strerror}") from None
        if exists and not self.path.is_dir():
            raise UsageError(f"--out {self.path} is a file; name a folder that does not exist yet")
        if self.path.is_dir() and any(self.path.iterdir()) and not resume:
            if not self.config.exists():
                raise UsageError(f"--out {self.path} holds other files and no run; name a folder of its own")
            if not overwrite:
                raise UsageError(
                    f"--out {self.path} holds a run already. Add --resume to continue it, "
                    "or --overwrite to delete it and start anew"
                )

    def create(self) -> None:
        """Make the folder, empty; of what is there already, only files of a run go away."""
        files.make(self.path)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in ("exported.pt", *FILES):  # the config last: broken off, it is still a run's folder
            with files.writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)

    def rewind(self, step: int) -> None:
        """Take back what was written after `step`, so that a resumed run writes every line once."""
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        self.write_text("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
        (self.path / "summary.json").unlink(missing_ok=True)

    def summary(self) -> dict[str, Any] | None:
        """What the run's summary says; None while it has none."""
        return read_summary(self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        """One more line of metrics.jsonl, on disk when this returns to whoever reads the file meanwhile."""
        path = self.path / "metrics.jsonl"
        with files.writing(path), open(path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(value, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        files.replace_text(self.path / name, text)

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        files.replace(self.path / name, lambda file: torch.save(tensors, file))
