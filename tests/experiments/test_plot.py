"""Plots are drawn from the metrics alone, of one run or several; without matplotlib the run goes on."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from experiments import plot
from experiments.runfolder import RunFolder
from gossip.errors import UsageError


def run(path: Path, diverged: bool = False, measure: str = "test_accuracy") -> Path:
    folder = RunFolder(path)
    folder.create()
    folder.write_text("config.toml", 'dataset = "text"\n' if measure == "test_perplexity" else "")
    for step in range(1, 7):
        row = {"step": step, "epoch": step / 2, "loss": 2 / step, "loss_min": 1 / step, "loss_max": 3 / step}
        if step % 3 == 0 and not diverged:
            row |= {measure: 10.0 * step, "consensus_distance": 1 / step}
        folder.append(row)
    return path


@pytest.mark.parametrize("diverged", [False, True])
def test_a_run_is_drawn(tmp_path: Path, diverged: bool) -> None:
    pytest.importorskip("matplotlib")
    folder = run(tmp_path / "a", diverged)
    pictures = plot.draw([folder], folder)
    assert pictures == [folder / "training.png", folder / "consensus.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_several_runs_in_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    folders = [run(tmp_path / name) for name in ("a", "b", "c", "again/a")]
    plot.run(Namespace(runs=folders, out=tmp_path))
    pictures = [tmp_path / "training.png", tmp_path / "consensus.png"]
    assert capsys.readouterr().out.split() == [str(picture) for picture in pictures]
    assert all(picture.exists() for picture in pictures)


def test_several_runs_leave_the_pictures_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    grid, here = [run(tmp_path / "grid" / name) for name in "ab"], tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    plot.run(Namespace(runs=grid, out=None))
    assert (here / "training.png").exists() and not list(tmp_path.glob("grid/**/*.png"))
    plot.run(Namespace(runs=[tmp_path / "grid"], out=None))
    assert (tmp_path / "grid" / "training.png").exists() and not list(tmp_path.glob("grid/*/*.png"))
    plot.run(Namespace(runs=grid[:1], out=None))
    assert (grid[0] / "training.png").exists()


def test_the_title_speaks_of_a_band_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure, titles = pytest.importorskip("matplotlib.figure").Figure, list[str]()
    monkeypatch.setattr(
        figure, "savefig", lambda self, *args, **options: titles.append(self.axes[0].get_title())
    )
    runs = [run(tmp_path / name) for name in "ab"]
    plot.draw(runs[:1], tmp_path)
    plot.draw(runs, tmp_path)
    assert titles[0::2] == ["Training loss (band: all nodes)", "Training loss"]


def test_text_is_judged_by_perplexity_and_apart_from_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure, shown = pytest.importorskip("matplotlib.figure").Figure, list[str]()
    monkeypatch.setattr(
        figure, "savefig", lambda self, *args, **options: shown.extend(a.get_ylabel() for a in self.axes)
    )
    text, images = run(tmp_path / "text", measure="test_perplexity"), run(tmp_path / "images")
    plot.draw([text], text)
    plot.draw([images], images)
    always = ["training loss", "consensus distance"]
    assert [label for label in shown if label not in always] == ["test perplexity", "test accuracy, %"]
    with pytest.raises(UsageError, match="draw them apart"):
        plot.draw([text, images], tmp_path)


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = run(tmp_path / "a")
    assert plot.draw([folder], folder) == []
    assert capsys.readouterr().out == "no plots: matplotlib is not installed (pip install matplotlib)\n"


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        plot.run(Namespace(runs=[tmp_path], out=None))
    (run(tmp_path / "a") / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="nothing has been measured"):
        plot.run(Namespace(runs=[tmp_path], out=None))
