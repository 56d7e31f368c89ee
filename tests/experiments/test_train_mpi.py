"""The training script under mpirun: the same numbers as on virtual nodes, and one exit code for the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import train
from experiments.curves import group
from experiments.runs import find

pytestmark = pytest.mark.mpi

SMALL = (
    *("--model", "mlp:hidden=8", "--dataset", "synthetic:train=256,test=60", "--batch-size", "16"),
    *("--algorithm", "dcd", "--compressor", "qsgd:bits=8", "--log-every", "4", "--epochs", "4"),
)

FAULTY = """
import math, signal, sys
from experiments import agree, train
check = agree.Agreement.check_loss

def faulty(self, loss, step):
    if step == 5 and self._world.rank == 1:
        {fault}
    check(self, loss, step)

agree.Agreement.check_loss = faulty
train.main(sys.argv[1:])
"""


def assert_same_weights(*runs: Path) -> None:
    for rank in range(3):
        a, b = (
            torch.load(run / f"checkpoint/step-000024/rank{rank}.pt", weights_only=True)["model"]
            for run in runs
        )
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_equals_that_of_virtual_nodes(mpirun: Any, tmp_path: Path) -> None:
    ran = mpirun(3, "-m", "experiments.train", *SMALL, "--out", str(tmp_path / "mpi"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("effective batch 48") == 1 and "exposed wait" in ran.stdout
    for name in ("training.png", "consensus.png", "averaged.pt"):
        assert (tmp_path / "mpi" / name).exists()
    facts = json.loads((tmp_path / "mpi" / "env.json").read_text())
    assert facts["packages"]["torch"] == torch.__version__

    assert (
        train.run(["--config", str(tmp_path / "mpi" / "config.toml"), "--out", str(tmp_path / "local")]) == 0
    )
    assert_same_weights(tmp_path / "mpi", tmp_path / "local")
    groups = group(find([tmp_path]))
    assert [(each.label, each.runs[0].settings["virtual-nodes"]) for each in groups] == [
        ("dcd qsgd:bits=8, virtual-nodes", True),
        ("dcd qsgd:bits=8, no virtual-nodes", False),
    ]
    a, b = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("mpi", "local"))
    for name in ("train_loss", "test_accuracy"):
        assert a[name] == pytest.approx(b[name], rel=1e-5), name
    for name in ("bytes_sent_per_step", "messages_sent_per_step"):  # the last of 24 may still queue
        assert 23 / 24 * b[name] <= a[name] <= b[name], name


def test_a_resumed_job_ends_as_an_unbroken_one(mpirun: Any, tmp_path: Path) -> None:
    for flags in ((*SMALL, "--steps", "9"), ("--resume", "--steps", "24")):
        ran = mpirun(3, "-m", "experiments.train", *flags, "--out", str(tmp_path / "parts"))
        assert ran.returncode == 0, ran.stderr
    assert train.run([*SMALL, "--nodes", "3", "--out", str(tmp_path / "whole")]) == 0
    assert_same_weights(tmp_path / "parts", tmp_path / "whole")


def test_sigterm_on_one_rank_stops_all_after_a_checkpoint(mpirun: Any, tmp_path: Path) -> None:
    code = FAULTY.format(fault="signal.raise_signal(signal.SIGTERM)")
    ran = mpirun(3, "-c", code, *SMALL, "--epochs", "100", "--out", str(tmp_path / "a"))
    assert ran.returncode == 143, ran.stderr
    assert ran.stdout.count("stopped as asked") == 1
    *_, saved = sorted((tmp_path / "a" / "checkpoint").glob("step-*/complete"))
    assert json.loads(saved.read_text())["step"] in range(6, 20)


def test_divergence_on_one_rank_ends_all_with_code_3(mpirun: Any, tmp_path: Path) -> None:
    ran = mpirun(3, "-c", FAULTY.format(fault="loss = math.nan"), *SMALL, "--out", str(tmp_path / "a"))
    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.count("diverged") >= 1 and "rank 1" in ran.stderr and "Traceback" not in ran.stderr
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (summary["diverged"], summary["diverged_rank"], summary["diverged_step"]) == (True, 1, 5)


def test_a_usage_error_is_printed_once_with_code_2(mpirun: Any, tmp_path: Path) -> None:
    ran = mpirun(
        3, "-m", "experiments.train", *SMALL, "--topology", "torus:4x4", "--out", str(tmp_path / "a")
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.count("has 16 nodes") == 1 and "Traceback" not in ran.stderr
    assert not (tmp_path / "a").exists()


BY_RANK = """
import json, sys
from experiments import train
from gossip.transport.environment import env_rank
train.main(json.loads(sys.argv[1])[env_rank()])
"""


def run_by_rank(mpirun: Any, *flags: tuple[str, ...]) -> Any:
    """A job whose ranks were given different flags, as ``mpirun -n 1 … : -n 1 …`` does."""
    return mpirun(len(flags), "-c", BY_RANK, json.dumps(flags))


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_ranks_with_different_flags_are_told_before_anything_is_written(mpirun: Any, tmp_path: Path) -> None:
    own = (*SMALL, "--out", str(tmp_path / "a"))
    ran = run_by_rank(mpirun, own, (*own, "--lr", "0.2"))
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.count("the ranks disagree on --lr (rank 0: 0.1; rank 1: 0.2)") == 1
    assert not (tmp_path / "a").exists()


def test_a_finished_run_outlives_ranks_that_disagree_about_it(mpirun: Any, tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert mpirun(2, "-m", "experiments.train", *SMALL, "--out", str(run)).returncode == 0
    before = contents(run)
    own = (*SMALL, "--out", str(run))
    ran = run_by_rank(mpirun, (*own, "--overwrite"), (*own, "--resume"))
    assert ran.returncode == 2, ran.stderr
    assert "the ranks disagree on --resume (rank 0: False; rank 1: True)" in ran.stderr
    assert contents(run) == before


def test_a_checkpoint_that_one_rank_cannot_read_changes_nothing(mpirun: Any, tmp_path: Path) -> None:
    run = tmp_path / "a"
    assert mpirun(2, "-m", "experiments.train", *SMALL, "--out", str(run)).returncode == 0
    newest = max((run / "checkpoint").glob("step-*"))
    (newest / "rank1.pt").write_bytes(b"torn")
    before = contents(run)
    ran = mpirun(2, "-m", "experiments.train", "--resume", "--epochs", "6", "--out", str(run))
    assert ran.returncode == 4, ran.stderr
    assert f"{newest}/rank1.pt is" in ran.stderr and "Traceback" not in ran.stderr
    assert contents(run) == before
