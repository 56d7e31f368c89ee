"""A training job small enough to be run many times: a tiny data set and a small model on virtual nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments import data, plot, train
from experiments.data import Dataset
from gossip import envreport

Job = Callable[..., dict[str, Any]]

TINY = (
    "--model",
    "mlp:hidden=8",
    "--dataset",
    "synthetic",
    "--batch-size",
    "8",
    "--epochs",
    "2",
    "--lr",
    "0.01",
)


def tiny_dataset(train_size: int = 96, test_size: int = 50) -> Dataset:
    """Dark and bright images: a few steps learn to tell them apart."""
    generator = torch.Generator().manual_seed(7)

    def images(n: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(n) % 2
        noise = torch.randint(0, 60, (n, 3, 32, 32), generator=generator)
        return (noise + 150 * y.view(-1, 1, 1, 1)).to(torch.uint8), y

    half = torch.full((3,), 0.5)
    return Dataset(*images(train_size), *images(test_size), half, half / 2, ("dark", "bright"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """``job("--nodes", "3", out="a")`` runs the training script with `TINY` and these flags, which win.

    Returns exit code, run folder, summary (None if there is none) and metrics.
    """
    monkeypatch.setattr(data, "load", lambda name, folder, world: tiny_dataset())
    monkeypatch.setattr(envreport, "collect", dict)  # takes a second, and so does
    monkeypatch.setattr(plot, "draw", lambda runs, out: [])

    def run(*flags: str, out: str = "run") -> dict[str, Any]:
        folder = tmp_path / out
        code = train.run([*(() if "--resume" in flags else TINY), *flags, "--out", str(folder)])
        summary, metrics = folder / "summary.json", folder / "metrics.jsonl"
        return {
            "code": code,
            "folder": folder,
            "summary": json.loads(summary.read_text()) if summary.exists() else None,
            "metrics": [json.loads(line) for line in metrics.read_text().splitlines()],
        }

    return run
