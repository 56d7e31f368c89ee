"""Shapes of the models that can be trained here, and byte counts of runs that were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import shapes
from gossip import byte_table
from gossip.errors import UsageError
from gossip.shapes import load

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


@pytest.mark.parametrize(
    ("built_in", "model"), [("resnet20", "resnet20"), ("resnet20-a", "resnet20:shortcut=A")]
)
def test_built_in_shapes_are_the_models(built_in: str, model: str) -> None:
    assert load(built_in).tensors == shapes.of(model).tensors


def test_the_command_writes_a_file_that_can_be_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes.main(["resnet110:shortcut=A"])
    file = tmp_path / "resnet110.toml"
    file.write_text(capsys.readouterr().out)
    model = load(str(file))
    assert model.tensors == shapes.of("resnet110:shortcut=A").tensors
    ratio = byte_table.row(model, "dgc").paper_ratio
    assert ratio is not None and round(ratio) == 162


def test_classes_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert shapes.of("resnet20", classes=100).size == load("resnet20").size + 90 * 65
    with pytest.raises(UsageError, match="did you mean 'resnet20'"):
        shapes.main(["resent20"])


@pytest.mark.parametrize("run", sorted(RESULTS.glob("cifar10-ring8/*-seed1")), ids=lambda run: run.name)
def test_committed_mpi_runs_sent_what_is_printed(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    row = byte_table.row(
        load(summary["model"]),
        summary["algorithm"],
        summary["compressor"],
        summary["topology"],
        summary["nodes"],
    )
    assert row.exact and row.sent_bytes == summary["bytes_sent_per_step"]
    assert row.allreduce_bytes == summary["allreduce_bytes_per_step"]
