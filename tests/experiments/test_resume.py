"""Training 10 steps is training 5, saving, loading and training 5: bit for bit, on every node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gossip
from experiments import data, train
from experiments.agree import Agreement
from experiments.runfolder import RunFolder
from experiments.runs import read_metrics
from gossip.algorithms import ALGORITHMS
from gossip.errors import CheckpointError, UsageError
from tests.experiments.checkpoints import assert_equal, states
from tests.experiments.conftest import tiny_dataset

EPOCH = 4  # steps, of 3 nodes with the tiny data set


@pytest.mark.parametrize("algorithm", [*sorted(ALGORITHMS), "dcd:every=3"])
@pytest.mark.filterwarnings("ignore:(ecd|naive|dcd)")
def test_resumed_is_uninterrupted(job: Any, algorithm: str) -> None:
    flags = ("--nodes", "3", "--algorithm", algorithm, "--compressor", "qsgd:bits=8", "--log-every", "3")
    part = ("--model", "resnet20", "--eval-every", "9") if algorithm == "dcd" else ()  # one with batch norm
    whole = job(*flags, *part, out="whole")
    job(*flags, *part, "--steps", str(EPOCH), out="parts")
    parts = job("--resume", "--steps", "100", out="parts")
    assert_equal(states(whole["folder"]), states(parts["folder"]))
    assert [row["step"] for row in parts["metrics"]] == [3, 4, 6, 8] == [r["step"] for r in whole["metrics"]]
    for a, b in zip(whole["metrics"], parts["metrics"], strict=True):
        for name in ("loss_min", "loss", "loss_max", "lr", "grad_norm", "bytes_sent_per_step"):
            assert a[name] == b[name], name
    for name in ("steps", "train_loss", "test_accuracy", "consensus_distance", "bytes_sent_per_step"):
        assert whole["summary"][name] == parts["summary"][name], name


def test_a_run_cut_off_between_checkpoints_writes_every_line_once(job: Any) -> None:
    """Lines beyond the last checkpoint, and one cut in half, are written anew."""
    flags = ("--nodes", "2", "--log-every", "2", "--checkpoint-every", "1")
    whole = job(*flags, out="whole")
    run = job(*flags, "--steps", "6")
    lines = (run["folder"] / "metrics.jsonl").read_text()
    (run["folder"] / "metrics.jsonl").write_text(lines + '{"step": 8, "loss": 1}\n{"step": 10, "lo')
    again = job("--resume", "--steps", "100")
    assert [row["step"] for row in again["metrics"]] == [2, 4, 6, 8, 10, 12]
    assert [r["loss"] for r in again["metrics"]] == [r["loss"] for r in whole["metrics"]]


def test_a_finished_run_says_so(job: Any, capsys: Any) -> None:
    first = job("--nodes", "2")
    capsys.readouterr()
    again = job("--resume")
    assert (
        again["code"] == 0 and again["metrics"] == first["metrics"] and again["summary"] == first["summary"]
    )
    assert "has made 12 steps. Raise --epochs or --steps" in capsys.readouterr().out


def stop_after(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """As a signal would, but at a step that is known."""
    monkeypatch.setattr(Agreement, "stops_after", lambda agreement, step: step == last)


def test_a_run_may_end_where_it_was_stopped(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = job("--nodes", "2", "--steps", "5", "--log-every", "3", out="whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert job("--nodes", "2", "--log-every", "3")["summary"] is None
    ended = job("--resume", "--steps", "5")
    assert [row["step"] for row in ended["metrics"]] == [3, 5] == [row["step"] for row in whole["metrics"]]
    for name in ("steps", "train_loss", "test_accuracy", "consensus_distance", "bytes_sent_per_step"):
        assert ended["summary"][name] == whole["summary"][name], name


def test_a_run_is_not_ended_before_where_it_was_stopped(job: Any, monkeypatch: Any, capsys: Any) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        run = job("--nodes", "2")
    config = (run["folder"] / "config.toml").read_text()
    assert job("--resume", "--steps", "4")["summary"] is None
    assert "has made 5 steps. Raise --epochs or --steps" in capsys.readouterr().out
    assert (run["folder"] / "config.toml").read_text() == config


def test_more_epochs_go_on_at_the_rate_of_the_longer_schedule(job: Any) -> None:
    whole = job("--nodes", "3", "--epochs", "2", "--log-every", "1", out="whole")
    job("--nodes", "3", "--epochs", "1", "--log-every", "1")
    longer = job("--resume", "--epochs", "2")
    assert [row["lr"] for row in longer["metrics"][EPOCH:]] == [row["lr"] for row in whole["metrics"][EPOCH:]]


def test_hosts_without_a_shared_disk_resume_and_overwrite(
    job: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every node here is the first of its host, with a folder of its own."""

    def own(out: str) -> RunFolder:
        world = gossip.world()
        world.local_rank = 0
        return RunFolder(Path(out).with_name(f"host{world.rank}"))

    monkeypatch.setattr(train, "RunFolder", own)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    job("--nodes", "2", "--steps", "4")
    hosts = [tmp_path / f"host{rank}" for rank in range(2)]
    config, other = [(host / "config.toml").read_text() for host in hosts]
    assert config == other and not (hosts[1] / "metrics.jsonl").exists()
    (tmp_path / "run" / "config.toml").write_text(config)
    job("--resume", "--steps", "6")
    assert [row["step"] for row in read_metrics(hosts[0])] == [4, 6]
    old = set((hosts[1] / "checkpoint").iterdir())
    job("--nodes", "2", "--steps", "2", "--overwrite")
    assert old and not old & set((hosts[1] / "checkpoint").iterdir())


def test_without_a_checkpoint_it_starts_from_the_beginning(job: Any) -> None:
    run = job("--nodes", "2")
    for path in (run["folder"] / "checkpoint").glob("*/complete"):
        path.unlink()
    again = job("--resume")
    assert [row["loss"] for row in again["metrics"]] == [row["loss"] for row in run["metrics"]]


def test_what_does_not_fit_is_refused(job: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in"):
        job("--resume", out="absent")
    job("--nodes", "2", "--steps", "6")
    with pytest.raises(UsageError, match="started with --algorithm dpsgd, not dcd: leave --algorithm out"):
        job("--resume", "--algorithm", "dcd")
    with pytest.raises(UsageError, match="started with --nodes 2, not 3"):
        job("--resume", "--nodes", "3")


def test_other_images_do_not_continue_a_run(job: Any, monkeypatch: Any) -> None:
    job("--nodes", "2", "--steps", "6")
    monkeypatch.setattr(data, "load", lambda name, folder, world: tiny_dataset())
    job("--resume", "--steps", "7")
    other = replace(tiny_dataset(), test_y=tiny_dataset().test_y.flip(0))
    monkeypatch.setattr(data, "load", lambda name, folder, world: other)
    with pytest.raises(UsageError, match="the data of --data-dir are not those"):
        job("--resume", "--steps", "8")


def test_a_checkpoint_that_does_not_name_its_data_goes_on(job: Any) -> None:
    """As those of older versions."""
    run = job("--nodes", "1", "--steps", "6")
    for path in (run["folder"] / "checkpoint").glob("*/rank0.pt"):
        state = torch.load(path, weights_only=True)
        del state["data"]
        torch.save(state, path)
    assert job("--resume", "--steps", "8")["metrics"][-1]["step"] == 8


def test_a_torn_checkpoint_is_named_and_the_one_before_works(job: Any) -> None:
    whole = job("--nodes", "2", out="whole")
    run = job("--nodes", "2", "--steps", "7")
    torn = run["folder"] / "checkpoint" / "step-000007" / "rank1.pt"
    torn.write_bytes(torn.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"rank1.pt is damaged .* go on from step-000006, remove"):
        job("--resume")
    (torn.parent / "complete").unlink()
    again = job("--resume", "--steps", "100")
    assert_equal(states(again["folder"], 2), states(whole["folder"], 2))
