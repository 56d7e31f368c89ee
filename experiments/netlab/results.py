"""The results file: everything that was measured, in one JSON value, written again after every job."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from gossip import files
from gossip.errors import UsageError

IMAGES = 50_000
"""An epoch is CIFAR-10's training set."""

Cell = dict[str, Any]
"""One method on one network; see measure.py. `bandwidth` is in bit/s, `latency` in seconds one way."""


@dataclass
class Results:
    """What `results.json` holds.

    Attributes:
        about: command, machine, when, and what one step computes.
        cells: time per step, by method, overlap and network.
        calibration: what the planner was fitted to, and on which network.
        losses: method's key -> loss per step.
        goodput: rows, see goodput.py.
        failed: what could not be measured, and why.
    """

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    goodput: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.path.parent

    def save(self) -> None:
        """Write the file; whoever reads it meanwhile sees the old one whole."""
        facts = {name: value for name, value in asdict(self).items() if name != "path"}
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        files.replace_text(self.path, text)

    @classmethod
    def load(cls, folder: Path) -> Results:
        """What was saved in `folder`. Raises UsageError."""
        path = folder / "results.json"
        try:
            found = cls(path, **json.loads(path.read_text(encoding="utf-8")))
            if "command" not in found.about:
                raise ValueError("they do not say what was measured")
            return found
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{folder} holds no results of the network laboratory: {error}") from None

    def networks(self) -> list[tuple[float, float]]:
        """(bandwidth, latency) of all cells, best first."""
        return sorted({(c["bandwidth"], c["latency"]) for c in self.cells}, key=lambda n: (-n[0], n[1]))

    def cell(self, method: str, overlap: bool, bandwidth: float, latency: float) -> Cell | None:
        """One cell; torch's DDP, which overlaps by itself, stands in both columns."""
        for c in self.cells:
            wanted = (method, bandwidth, latency) == (c["method"], c["bandwidth"], c["latency"])
            if wanted and (c["overlap"] == overlap or method in ("ddp", "local")):
                return c
        return None


def epoch_steps(results: Results) -> int:
    """How many steps of all hosts an epoch of CIFAR-10's training set takes."""
    return -(-IMAGES // (results.about["hosts"] * results.about["batch_size"]))


def machine() -> dict[str, Any]:
    """What a reader must know about where this was measured."""
    return {
        "command": " ".join(["python -m experiments.netlab", *sys.argv[1:]]),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }
