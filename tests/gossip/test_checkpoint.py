"""A checkpoint is complete or not there, keeps two, and says what is wrong with one that does not fit."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossip
from gossip import checkpoint
from gossip.errors import CheckpointError, WriteError

ABOUT = {"algorithm": "dcd"}


def save(folder: Path, *steps: int) -> None:
    world = gossip.world()
    for step in steps:
        state = {"x": torch.full((3,), float(step + 10 * world.rank)), "name": "a", "pair": (1, None)}
        checkpoint.save(folder, step, world, state, ABOUT)


def load(folder: Path) -> tuple[int, dict[str, Any]]:
    found = checkpoint.load(folder, gossip.world(), ABOUT)
    assert found is not None
    return found


@pytest.mark.parametrize("nodes", [1, 3])
def test_every_rank_gets_its_own_state_of_the_newest_step(tmp_path: Path, nodes: int) -> None:
    gossip.launch(save, nodes, tmp_path, 1, 2)
    for rank, found in enumerate(gossip.launch(load, nodes, tmp_path)):
        step, state = found
        assert step == 2 and torch.equal(state["x"], torch.full((3,), 2.0 + 10 * rank))
        assert state["name"] == "a" and state["pair"] == (1, None)


def test_nothing_to_load(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, gossip.world()) is None
    assert checkpoint.latest(tmp_path / "absent") is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000010"]


def test_a_run_gone_back_drops_the_later_steps(tmp_path: Path) -> None:
    save(tmp_path, 4, 8, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000004", "step-000006"]


def test_an_incomplete_step_does_not_exist(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "step-000002" / "complete").unlink()
    assert load(tmp_path)[0] == 1


def test_no_file_is_ever_half_written_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def torn(state: object, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(WriteError, match=r"step-000002/rank0\.pt cannot be written: disk full"):
        save(tmp_path, 2)
    assert not (tmp_path / "step-000002" / "rank0.pt").exists()
    assert load(tmp_path)[0] == 1


def flip_a_value(file: Path) -> None:
    """Changes a tensor's bytes, and nothing else."""
    with zipfile.ZipFile(file) as parts:
        name = next(name for name in parts.namelist() if name.endswith("data/0"))
        data = parts.read(name)
    whole = file.read_bytes()
    assert whole.count(data) == 1 and data
    file.write_bytes(whole.replace(data, bytes(255 - byte for byte in data)))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.unlink(), "is missing"),
        (lambda file: os.truncate(file, 200), "damaged or was cut short"),
        (flip_a_value, "damaged or was cut short .*wrong checksum"),
        (lambda file: file.write_bytes(b""), "damaged or was cut short"),
        (lambda file: file.write_bytes(b"torn"), "damaged or was cut short"),
        (
            lambda file: file.write_bytes(pickle.dumps(os.getcwd, protocol=2)),
            "not a checkpoint of this program",
        ),
        (lambda file: torch.save(os.getcwd, file), "not a checkpoint of this program"),
        (lambda file: (file.parent / "complete").write_text("{"), "cannot be read"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_back(tmp_path: Path, damage: Any, says: str) -> None:
    save(tmp_path, 1, 2)
    damage(tmp_path / "step-000002" / "rank0.pt")
    with pytest.raises(CheckpointError, match=says) as caught:
        load(tmp_path)
    assert "step-000002" in str(caught.value)
    assert f"go on from step-000001, remove the folder {tmp_path / 'step-000002'}" in str(caught.value)


def test_another_number_of_ranks_is_named(tmp_path: Path) -> None:
    gossip.launch(save, 2, tmp_path, 5)
    with pytest.raises(CheckpointError, match="written by 2 ranks and this job has 3: start 2 ranks"):
        gossip.launch(load, 3, tmp_path)


def test_another_algorithm_is_named(tmp_path: Path) -> None:
    save(tmp_path, 5)
    with pytest.raises(CheckpointError, match="algorithm 'dcd'; this one has 'choco'"):
        checkpoint.load(tmp_path, gossip.world(), {"algorithm": "choco"})


def test_random_streams_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> tuple[Any, ...]:
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), random.gauss(0, 1)

    random.gauss(0, 1)  # leaves the second of its pair for the next call
    np.random.randn()
    checkpoint.save(tmp_path, 1, gossip.world(), {"random": checkpoint.rng_state()})
    expected = draw()
    draw()
    found = checkpoint.load(tmp_path, gossip.world())
    assert found is not None
    checkpoint.set_rng_state(found[1]["random"])
    assert draw() == expected
