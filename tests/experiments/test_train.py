"""The training script on virtual nodes: what it leaves behind, and how it ends when something goes wrong."""

from __future__ import annotations

import itertools
import json
import math
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossip
from experiments import config, data, models, recipe, train
from experiments.agree import Agreement, StopSignal
from experiments.runfolder import FILES
from experiments.runs import Run
from gossip.algorithms import ALGORITHMS
from gossip.errors import DivergedError, GossipError, UsageError, WatchdogError

PROMISED = {
    *("algorithm", "topology", "compressor", "nodes", "steps", "epochs", "train_loss", "test_accuracy"),
    *("test_accuracy_local_mean", "test_accuracy_local_min", "test_accuracy_local_max", "consensus_distance"),
    *("bytes_sent_per_step", "messages_sent_per_step", "allreduce_bytes_per_step", "step_ms", "compute_ms"),
    *("encode_ms", "decode_ms", "exposed_wait_ms", "compression_error", "diverged", "seed"),
}


def assert_same_weights(*folders: Path) -> None:
    first, *others = (torch.load(folder / "averaged.pt", weights_only=True) for folder in folders)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("nodes", "algorithm"), [*((3, name) for name in sorted(ALGORITHMS)), (1, "dcd"), (1, "allreduce")]
)
@pytest.mark.filterwarnings("ignore:(ecd|naive|dcd)")
def test_a_run_leaves_what_it_promises(job: Any, nodes: int, algorithm: str) -> None:
    run = job(
        "--nodes", str(nodes), "--algorithm", algorithm, "--compressor", "qsgd:bits=8", "--log-every", "2"
    )
    assert run["code"] == 0
    summary, metrics = run["summary"], run["metrics"]
    json.dumps(run["metrics"], allow_nan=False)
    assert summary.keys() >= PROMISED and not summary["diverged"]
    assert (summary["nodes"], summary["epochs"]) == (nodes, 2)
    assert summary["steps"] == 2 * math.ceil(96 / nodes / 8) == metrics[-1]["step"]
    assert 0 <= summary["test_accuracy"] <= 100
    low, mean, high = (summary[f"test_accuracy_local_{name}"] for name in ("min", "mean", "max"))
    assert low <= mean <= high
    if nodes == 1 or algorithm == "local":
        assert summary["bytes_sent_per_step"] == summary["messages_sent_per_step"] == 0
    parts = sum(summary[f"{part}_ms"] for part in ("compute", "encode", "decode", "mix", "exposed_wait"))
    assert summary["compute_ms"] > 0 and parts < 3 * summary["step_ms"]
    assert all((run["folder"] / name).exists() for name in FILES if not name.endswith((".png", ".txt")))


def test_metrics_have_a_line_per_interval_with_all_nodes_in_it(job: Any) -> None:
    metrics = job("--nodes", "2", "--steps", "7", "--log-every", "3", "--eval-every", "50")["metrics"]
    assert [row["step"] for row in metrics] == [3, 6, 7]
    for row in metrics:
        for name in ("loss", "step_ms", "compute_ms", "exposed_wait_ms", "grad_norm", "lr"):
            assert row[f"{name}_min"] <= row[name] <= row[f"{name}_max"]
        assert row["effective_batch"] == 16
        assert row["wait_ms_by_neighbor"].keys() == {"0", "1"}
    assert [("test_accuracy" in row) for row in metrics] == [False, False, True]


def test_evaluation_changes_nothing_about_training(job: Any) -> None:
    runs = [job("--nodes", "2", "--eval-every", every, out=every) for every in ("0.2", "9")]
    assert len(runs[0]["metrics"]) > len(runs[1]["metrics"])
    assert_same_weights(*(run["folder"] for run in runs))


def test_the_averaged_model_is_a_plain_state_dict_that_scores_as_stated(job: Any, monkeypatch: Any) -> None:
    run = job("--nodes", "3")
    model = models.build("mlp:hidden=8", 2)
    model.load_state_dict(torch.load(run["folder"] / "averaged.pt", weights_only=True))
    tiny = data.load("synthetic", "", None)
    x = (tiny.test_x.float() / 255 - 0.5) / 0.25
    accuracy = 100 * float((model(x).argmax(1) == tiny.test_y).double().mean())
    assert accuracy == pytest.approx(run["summary"]["test_accuracy"])


def test_the_config_repeats_the_run(job: Any) -> None:
    flags = ("--nodes", "2", "--algorithm", "choco", "--compressor", "qsgd:bits=4", "--seed", "3")
    first = job(*flags, out="a")
    second = first["folder"].parent / "b"
    train.run(["--config", str(first["folder"] / "config.toml"), "--out", str(second)])
    assert_same_weights(first["folder"], second)


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_a_run_says_which_data_and_nodes_it_is_of(job: Any, nodes: str) -> None:
    run = job("--nodes", nodes, "--steps", "1")
    facts = json.loads((run["folder"] / "env.json").read_text())
    digest = data.load("", "", None).digest[:12]
    assert facts == {"data": digest, "data_caveat": "", "virtual_nodes": nodes != "1"}
    assert Run.read(run["folder"]).settings.items() >= {"data": facts["data"], "algorithm": "dpsgd"}.items()
    assert run["summary"]["virtual_nodes"] is (nodes != "1")


@pytest.mark.parametrize(("warm_up", "ends_within"), [(7, False), (8, True), (400, True)])
def test_a_run_that_ends_within_dgcs_warm_up_says_so(
    job: Any, capsys: Any, warm_up: int, ends_within: bool
) -> None:
    job("--nodes", "2", "--steps", "8", "--algorithm", f"dgc:ratio=0.02,warmup_steps={warm_up}")
    said = (
        f"note: dgc never reaches its ratio of 0.02: the run ends within its warm-up of {warm_up} steps, at "
    )
    assert (said in capsys.readouterr().out) is ends_within


def test_seeds_differ(job: Any) -> None:
    runs = [job("--steps", "3", "--seed", seed, out=seed) for seed in ("0", "1", "2")]
    assert len({run["summary"]["train_loss"] for run in runs}) == 3


def test_only_rank_0_talks(job: Any, capfd: Any) -> None:
    job("--nodes", "3", "--log-every", "6")
    out = capfd.readouterr().out
    assert out.count("effective batch 24") == 1
    assert out.count("step 6/8") == 1 or out.count("step  6/8") == 1
    assert out.count("exposed wait") == 1 and "ETA" in out


@pytest.mark.parametrize(
    "flags", [("--optimizer", "adamw"), ("--amp", "bf16"), ("--nesterov",), ("--bn", "local")]
)
def test_other_ways_to_train(job: Any, flags: tuple[str, ...]) -> None:
    run = job("--nodes", "2", "--model", "resnet20", "--steps", "2", *flags)
    assert run["code"] == 0 and math.isfinite(run["summary"]["train_loss"])


def test_training_learns(job: Any) -> None:
    run = job("--nodes", "4", "--epochs", "6", "--algorithm", "dcd", "--compressor", "qsgd:bits=8")
    assert run["summary"]["test_accuracy"] > 90


# -- what goes wrong -------------------------------------------------------------------------------


def test_an_existing_run_is_refused_and_left_alone(job: Any) -> None:
    before = job("--steps", "2")
    with pytest.raises(UsageError, match=r"holds a run already\. Add --resume"):
        job("--steps", "3")
    after = job("--steps", "3", "--overwrite")
    assert before["metrics"][-1]["step"] == 2 and after["metrics"][-1]["step"] == 3


@pytest.mark.parametrize(
    "flags",
    [
        ("--algorithm", "dcdd"),
        ("--topology", "torus:4x4"),
        ("--compressor", "qsgd:bits=77"),
        ("--model", "resnet21"),
        ("--lr-schedule", "cosinus"),
        ("--partition", "dirichlet:alpha=-1"),
        ("--batch-size", "0"),
        ("--weights", "fair"),
        ("--device", "cuda:99"),
        ("--lr-warmup", "99"),
    ],
)
def test_usage_errors_come_before_anything_is_done(
    job: Any, flags: tuple[str, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    if "--device" not in flags:  # only join knows
        monkeypatch.setattr(data, "load", lambda *args: pytest.fail("fetches data first"))
    with pytest.raises(UsageError) as caught:
        job("--nodes", "3", *flags)
    assert caught.value.exit_code == 2 and str(caught.value)
    assert not (tmp_path / "run").exists()


class Poison(nn.Module):
    """Turns the loss of one rank into NaN from its third training step on."""

    def __init__(self, inner: nn.Module, rank: int) -> None:
        super().__init__()
        self.inner, self.steps, self.hit = inner, 0, gossip.world().rank == rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        y = self.inner(x)
        return y * math.nan if self.training and self.hit and self.steps >= 3 else y


@pytest.mark.parametrize("algorithm", ["local", "dcd", "allreduce", "dpsgd:every=2"])
@pytest.mark.parametrize("rank", [0, 2])
def test_divergence_names_rank_and_step(
    job: Any, monkeypatch: Any, algorithm: str, rank: int, tmp_path: Path
) -> None:
    build = models.build
    monkeypatch.setattr(models, "build", lambda *args: Poison(build(*args), rank))
    with pytest.raises(DivergedError, match=f"rank {rank}") as caught:
        job("--nodes", "3", "--algorithm", algorithm)
    assert caught.value.exit_code == 3
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary.keys() >= PROMISED
    assert (summary["diverged"], summary["diverged_rank"], summary["diverged_step"]) == (True, rank, 3)


def test_parameters_that_diverge_within_a_round_are_told_by_step(job: Any, tmp_path: Path) -> None:
    """The loss of step 1 is finite, and its update is not; rounds are of two steps."""
    with pytest.raises(DivergedError):
        job("--nodes", "2", "--algorithm", "dpsgd:every=2", "--lr", "1e38", "--lr-schedule", "constant")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged_step"] == 2


def test_a_rank_that_raises_ends_the_run(job: Any, monkeypatch: Any) -> None:
    def build(*args: Any) -> nn.Module:
        if gossip.world().rank == 1:
            raise ZeroDivisionError("of my own")
        return build_before(*args)

    build_before = models.build
    monkeypatch.setattr(models, "build", build)
    with pytest.raises(ZeroDivisionError, match="of my own"):
        job("--nodes", "3")


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["local", "dpsgd", "dcd:every=2", "allreduce"])
def test_sigterm_stops_all_nodes_at_one_step_with_a_checkpoint(
    job: Any, monkeypatch: Any, algorithm: str
) -> None:
    losses = itertools.count()
    check = Agreement.check_loss

    def signal_in_the_middle(self: Agreement, loss: float, step: int) -> None:
        if next(losses) == 10:
            self._signal.received = True
        check(self, loss, step)

    monkeypatch.setattr(Agreement, "check_loss", signal_in_the_middle)
    flags = ("--nodes", "3", "--algorithm", algorithm, "--epochs", "10", "--eval-every", "5")
    stopped = job(*flags)
    assert stopped["code"] == 143 and stopped["summary"] is None
    saved = sorted((stopped["folder"] / "checkpoint").iterdir())[-1]
    step = stopped["metrics"][-1]["step"]
    assert saved.name == f"step-{step:06d}" and 4 < step < 30

    monkeypatch.setattr(Agreement, "check_loss", check)
    resumed = job("--resume")
    assert resumed["code"] == 0 and resumed["summary"]["steps"] == 40
    whole = job(*flags, out="whole")
    assert_same_weights(resumed["folder"], whole["folder"])


def test_signals_are_remembered_and_handlers_put_back() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        before = signal.getsignal(number)
        with StopSignal() as stop:
            states = [stop.received]
            signal.raise_signal(number)
            assert [*states, stop.received] == [False, True]
        assert signal.getsignal(number) is before


@pytest.mark.parametrize("asked_at", [{0: 3}, {1: 3}, {0: 2, 2: 9}, {0: 1, 1: 1, 2: 1}])
@pytest.mark.parametrize("paces", [(1, 1, 1), (1, 3, 7)])
def test_nodes_agree_on_a_step_whatever_their_pace(asked_at: dict[int, int], paces: tuple[int, ...]) -> None:
    def node() -> int:
        world = gossip.world()
        mine = StopSignal()
        agreement = Agreement(world, mine, timeout=10)
        for step in itertools.count(1):
            mine.received |= asked_at.get(world.rank) == step
            if step % paces[world.rank] == 0:  # let the others run now and then
                world.wait(lambda: True, 0)
            if step % 20 == 0:
                agreement.meet(step)
            if agreement.stops_after(step):
                break
        return step

    stops = gossip.launch(node, 3)
    assert len(set(stops)) == 1 and stops[0] > min(asked_at.values())


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("asked", range(5, 9))
def test_virtual_nodes_stop_soon_however_many_they_are(every: int, behind: int, asked: int) -> None:
    """On a ring where a round needs the neighbours' same, or last, round; only rank 3 hears of the signal."""
    size = 24

    def node() -> int:
        world = gossip.world()
        signalled = StopSignal()
        agreement = Agreement(world, signalled, timeout=10, every=every)
        neighbors = [(world.rank + side) % size for side in (-1, 1)]

        def arrived(needed: int) -> bool:
            return all(world.notes["round"].get(j, 0) >= needed for j in neighbors)

        for step in itertools.count(1):
            world.note("round", step // every)
            world.wait(partial(arrived, step // every - behind), 10)
            signalled.received = world.rank == 3 and step >= asked
            if agreement.stops_after(step):
                return step
        raise AssertionError

    stops = gossip.launch(node, size)
    drift = size // 2 * every  # between the one that is asked and the one farthest ahead, at most
    assert len(set(stops)) == 1 and stops[0] <= asked + drift + 2 * every + 1


def test_whoever_does_not_come_is_named() -> None:
    def node() -> None:
        world = gossip.world()
        agreement = Agreement(world, StopSignal(), timeout=0.2)
        if world.rank == 0:
            agreement.meet(5)
        world.wait(lambda: "done" in world.notes, 0.5)

    with pytest.raises((WatchdogError, GossipError)):
        gossip.launch(node, 2)


def test_a_step_is_made_at_its_own_rate(job: Any) -> None:
    """The first one of a warm-up at a rate of 0: it changes nothing."""
    flags = ("--nodes", "2", "--steps", "1", "--lr-warmup", "1", "--momentum", "0")
    runs = [job(*flags, "--lr", lr, out=lr) for lr in ("0.1", "5")]
    first, second = (torch.load(run["folder"] / "averaged.pt", weights_only=True) for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0]["metrics"][0]["lr"] == 0 and runs[0]["metrics"][0]["epoch"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"lr": 0.3, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02}),
        (["--optimizer", "adamw"], {"lr": 0.3, "weight_decay": 0.02}),
    ],
)
def test_the_optimizer_is_as_asked(flags: list[str], expected: dict[str, Any]) -> None:
    words = ["--lr", "0.3", "--weight-decay", "0.02", "--momentum", "0.8", "--nesterov"]
    (group,) = recipe.build_optimizer(config.parse([*words, *flags]), nn.Linear(2, 2)).param_groups
    assert {name: group[name] for name in expected} == expected
