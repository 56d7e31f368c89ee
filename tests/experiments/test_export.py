"""The averaged model from checkpoint files alone: the same as what the run itself tested."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import data, export
from gossip.errors import CheckpointError, UsageError


@pytest.fixture(autouse=True)
def without_world(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny data set also for whoever loads it outside a job."""
    load = data.load
    monkeypatch.setattr(data, "load", lambda name, folder, world=None: load(name, folder, world))


def exported(run: Path, **options: Any) -> dict[str, torch.Tensor]:
    export.run(Namespace(**{"run": run, "out": None, "bn": None, "data_dir": None} | options))
    state: dict[str, torch.Tensor] = torch.load(run / "exported.pt", weights_only=True)
    return state


def test_it_is_the_model_that_the_run_tested(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = job("--nodes", "3", "--model", "resnet8", "--steps", "2")
    tested = torch.load(run["folder"] / "averaged.pt", weights_only=True)
    state = exported(run["folder"])
    assert state.keys() == tested.keys()
    for name, x in state.items():
        assert x.dtype == tested[name].dtype and torch.allclose(x, tested[name], rtol=1e-4, atol=1e-6), name
    assert "step 2, the mean of 3 nodes" in capsys.readouterr().out

    ranks = [
        torch.load(run["folder"] / f"checkpoint/step-000002/rank{rank}.pt", weights_only=True)["model"]
        for rank in range(3)
    ]
    averaged, own = exported(run["folder"], bn="average"), exported(run["folder"], bn="local")
    for name, x in averaged.items():
        if x.is_floating_point():
            mean = np.mean([state[name].double().numpy() for state in ranks], axis=0)
            assert np.array_equal(x.numpy(), mean.astype(np.float32)), name
        assert torch.equal(own[name], ranks[0][name]) is ("running" in name or "num_batches" in name), name


def test_without_a_checkpoint_it_says_so(job: Any, tmp_path: Path) -> None:
    run = job("--steps", "1")
    (run["folder"] / "checkpoint/step-000001/complete").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        exported(run["folder"])
    with pytest.raises(UsageError, match="holds no run"):
        exported(tmp_path / "nothing")
