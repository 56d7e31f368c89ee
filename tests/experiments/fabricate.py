"""Run folders as a run leaves them, without the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments import toml
from experiments.runs import Run


def run(
    path: Path,
    *,
    accuracy: float | None = 70.0,
    diverged_at: int | None = None,
    finished: bool = True,
    summary: dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    **config: Any,
) -> Run:
    """A run of 20 steps, ten to an epoch, tested after each half; `config` with ``_`` for ``-``."""
    path.mkdir(parents=True)
    if env is not None:
        (path / "env.json").write_text(json.dumps(env))
    settings = {"algorithm": "dcd", "nodes": 4, "seed": 1}
    settings |= {key.replace("_", "-"): value for key, value in config.items()}
    (path / "config.toml").write_text(f"# typed\n{toml.dumps(settings)}")
    steps = 20 if diverged_at is None else diverged_at
    rows: list[dict[str, Any]] = []
    for step in range(5, steps + 1, 5):
        row = {"step": step, "epoch": step / 10}
        row |= {"loss": 10 / step, "loss_min": 9 / step, "loss_max": 11 / step}
        row |= {"bytes_sent_per_step": 2**20, "step_ms": 30_000.0}
        if step % 10 == 0 and accuracy is not None:
            row |= {"test_accuracy": accuracy - 20 + step, "test_loss": 1.0, "consensus_distance": 1 / step}
        rows.append(row)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished or diverged_at is not None:
        ended = diverged_at is None
        result = {
            "algorithm": settings["algorithm"],
            "nodes": settings["nodes"],
            "steps": steps,
            "epochs": steps / 10,
            "train_loss": 0.5,
            "test_accuracy": accuracy if ended else None,
            "test_accuracy_local_mean": accuracy if ended else None,
            "consensus_distance": 0.05 if ended else None,
            "bytes_sent_per_step": 2.0**20,
            "exposed_wait_ms": 1.5,
            "compression_error": 0.01,
            "seconds": 600.0,
            "seed": settings["seed"],
            "diverged": not ended,
            "command": f"python -m experiments.train --out {path.name}",
        }
        if not ended:
            result |= {"diverged_step": diverged_at, "diverged_rank": 2}
        (path / "summary.json").write_text(json.dumps(result | (summary or {})))
    return Run.read(path)
