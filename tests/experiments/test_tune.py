"""The learning rate is chosen by the training loss, and the choice is a sweep file."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.sweep import command
from experiments.sweep.grid import SweepFile
from experiments.sweep.tune import Choice, choose, lines, tuned_file, with_rates
from gossip.errors import UsageError
from tests.experiments import fabricate

FILE = """
model = "mlp:hidden=8"
nodes = 2
seed = [1, 2]
[[runs]]
algorithm = "allreduce"
[[runs]]
algorithm = ["dcd", "ecd"]
compressor = "qsgd:bits=4"
[about]
source = "a paper"
deviations = ["short", "small"]
"""
RATES = [0.1, 0.2, 0.4]


def tuned(path: Path) -> tuple[list[Choice], SweepFile]:
    """All-reduce is best at 0.2, DCD at the edge, and ECD diverges; test accuracy says the opposite."""
    (path / "a.toml").write_text(FILE)
    file = SweepFile.read(path / "a.toml")
    points = with_rates(file, RATES).points()
    assert len(points) == 3 * len(RATES) * 2
    for point in points:
        algorithm, lr, seed = point.args.algorithm, point.args.lr, point.args.seed
        loss = abs(math.log(lr / (0.2 if algorithm == "allreduce" else 0.4))) + seed
        diverged = 10 if algorithm == "ecd" or (algorithm, lr, seed) == ("allreduce", 0.4, 2) else None
        accuracy = 100 * loss / 5
        fabricate.run(
            path / "out" / point.name,
            accuracy=accuracy,
            diverged_at=diverged,
            summary={"train_loss": loss},
            algorithm=algorithm,
            lr=lr,
            seed=seed,
        )
    return choose(points, path / "out"), file


def test_the_lowest_training_loss_decides(tmp_path: Path) -> None:
    chosen, _ = tuned(tmp_path)
    assert [choice.name for choice in chosen] == ["allreduce", "dcd-qsgd-bits4", "ecd-qsgd-bits4"]
    assert [choice.best for choice in chosen] == [0.2, 0.4, None]
    assert [choice.at_the_edge for choice in chosen] == [False, True, False]
    assert chosen[0].losses == {
        0.1: {seed: pytest.approx(seed + math.log(2)) for seed in (1, 2)},
        0.2: {1: 1, 2: 2},
        0.4: {1: pytest.approx(1 + math.log(2)), 2: math.inf},
    }
    said = list(lines(chosen))
    assert "0.2: 1.5000, 0.4: 1 of 2 diverged" in said[0] and "edge of the grid" in said[1]
    assert "diverged at every lr" in said[2] and "0.1: diverged, 0.2: diverged" in said[2]


def test_seeds_of_blocks_are_in_the_tuned_file(tmp_path: Path) -> None:
    chosen, file = tuned(tmp_path)
    path = tmp_path / "tuned.toml"
    path.write_text(tuned_file(chosen, replace(file, base={"model": "mlp:hidden=8", "nodes": 2}), file.path))
    assert {point.args.seed for point in SweepFile.read(path).points()} == {1, 2}


def test_only_names_what_is_tuned(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    file = with_rates(SweepFile.read(tmp_path / "a.toml"), RATES)
    options = {"seeds": [1], "set": [], "file": tmp_path / "a.toml"}
    points = command.chosen(file, Namespace(only="dcd-*", **options))
    assert [(point.args.algorithm, point.args.lr) for point in points] == [("dcd", lr) for lr in RATES]
    with pytest.raises(UsageError, match=r"--only nothing: there is no such run[^\0]*allreduce-lr0.1-seed1"):
        command.chosen(file, Namespace(only="nothing", **options))


def test_the_choice_is_a_sweep_file_that_says_what_was_tried(tmp_path: Path) -> None:
    chosen, file = tuned(tmp_path)
    path = tmp_path / "tuned.toml"
    path.write_text(tuned_file(chosen, file, file.path))
    again = SweepFile.read(path)
    points = again.points()
    assert [(p.name, p.args.lr) for p in points if p.args.seed == 1] == [
        ("allreduce-lr0.2-seed1", 0.2),
        ("dcd-qsgd-bits4-lr0.4-seed1", 0.4),
    ]
    assert all(p.args.model == "mlp:hidden=8" and p.nodes == 2 for p in points) and len(points) == 4
    assert again.about == file.about
    assert "training loss" in path.read_text() and '"dcd-qsgd-bits4" = ["0.1: ' in path.read_text()
    assert '"0.4: 1 of 2 diverged"' in path.read_text() and "[full]" not in path.read_text()


def test_the_full_settings_stay_with_the_chosen_rates(tmp_path: Path) -> None:
    chosen, _ = tuned(tmp_path)
    full = "[full]\nlr = 3.2\nepochs = 300\nlr_warmup = 5\n"
    (tmp_path / "a.toml").write_text(FILE + full)
    path = tmp_path / "tuned.toml"
    path.write_text(tuned_file(chosen, SweepFile.read(tmp_path / "a.toml"), tmp_path / "a.toml"))
    small, large = (SweepFile.read(path, full).points([1]) for full in (False, True))
    assert [(p.name, p.args.lr) for p in small] == [(p.name, p.args.lr) for p in large]
    assert {p.args.epochs for p in small} == {20} and {p.args.lr_warmup for p in small} == {0}
    assert {p.args.epochs for p in large} == {300} and {p.args.lr_warmup for p in large} == {5}
    assert "3.2" not in path.read_text()


@pytest.mark.parametrize("rate", ["", "lr = 3.2\n"])
def test_full_runs_of_their_own_are_as_in_the_file(tmp_path: Path, rate: str) -> None:
    """Nobody has tuned them; that the tuned blocks are others must not change them."""
    chosen, _ = tuned(tmp_path)
    source, path = tmp_path / "a.toml", tmp_path / "tuned.toml"
    full = f'[full]\nepochs = 300\n{rate}[[full.runs]]\nalgorithm = ["dpsgd", "choco"]\nnodes = 4\n'
    source.write_text(f"lr = 0.3\nmomentum = 0\n{FILE}{full}")
    path.write_text(tuned_file(chosen, SweepFile.read(source), source))
    asked, kept = (SweepFile.read(file, full=True).points() for file in (source, path))
    assert [vars(p.args) for p in asked] == [vars(p.args) for p in kept] and len(kept) == 4
    assert {p.args.lr for p in kept} == {3.2 if rate else 0.3}


def test_what_was_tuned_in_full_is_so_already(tmp_path: Path) -> None:
    chosen, _ = tuned(tmp_path)
    source = tmp_path / "a.toml"
    source.write_text(f"{FILE}[full]\nepochs = 300\n[[full.runs]]\nalgorithm = 'choco'\n")
    assert "[full]" not in tuned_file(chosen, SweepFile.read(source, full=True), source)
