"""Pictures of a run: ``python -m experiments.plot runs/a [runs/b ...]`` draws several into one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.headline import ACCURACY, headline
from experiments.runfolder import read_metrics
from gossip.errors import UsageError

# Okabe and Ito's palette can be told apart with any kind of colour vision; the dashes help without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")


def draw(runs: Sequence[str | Path], out: str | Path) -> Path | None:
    """Draw ``training.png`` and ``consensus.png`` of `runs` into the folder `out`.

    Returns the path of the first; None, after saying so, where matplotlib is not installed.

    Raises:
        UsageError: some runs were tested on images and others on text.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plots: matplotlib is not installed (pip install matplotlib)", flush=True)
        return None
    short = [Path(run).name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run) for run in runs]
    data = {name: read_metrics(run) for name, run in zip(names, runs, strict=True)}
    tests = {shown for rows in data.values() for row in rows if (shown := headline(row)) is not None}
    if len(tests) > 1:
        raise UsageError("runs on images and runs on text do not go into one picture: draw them apart")
    tested = tests.pop() if tests else ACCURACY
    out = Path(out)

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss, test = figure.subplots(1, 2)
    for style, (name, rows) in enumerate(data.items()):
        _line(loss, rows, "loss", name, style, band=len(data) == 1)
        _line(test, rows, tested.key, name, style)
    loss.set(xlabel="epoch", ylabel="training loss", title="Training loss (band: all nodes)")
    unit = f" ({tested.unit})" if tested.unit else ""
    test.set(
        xlabel="epoch",
        ylabel=f"{tested.title}{unit}",
        title=f"{tested.title.capitalize()} of the averaged model",
    )
    _finish((loss, test), legend=len(data) > 1)
    figure.savefig(out / "training.png", dpi=150)

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    consensus = figure.subplots()
    for style, (name, rows) in enumerate(data.items()):
        _line(consensus, rows, "consensus_distance", name, style)
    consensus.set(xlabel="epoch", ylabel="consensus distance", title="How far the nodes are from their mean")
    if any(row.get("consensus_distance") for rows in data.values() for row in rows):
        consensus.set_yscale("log")
    _finish((consensus,), legend=len(data) > 1)
    figure.savefig(out / "consensus.png", dpi=150)
    return out / "training.png"


def _line(
    axes: Any, rows: Sequence[dict[str, Any]], key: str, name: str, style: int, band: bool = False
) -> None:
    """One run's `key` against the epoch; with few points each is marked."""
    rows = [row for row in rows if row.get(key) is not None]
    epochs, color = [row["epoch"] for row in rows], COLORS[style % len(COLORS)]
    marker = "o" if len(rows) <= 30 else ""
    dashes = DASHES[style % len(DASHES)]
    axes.plot(
        epochs, [row[key] for row in rows], dashes, color=color, marker=marker, markersize=3.5, label=name
    )
    if band:
        axes.fill_between(
            epochs,
            [row[f"{key}_min"] for row in rows],
            [row[f"{key}_max"] for row in rows],
            color=color,
            alpha=0.2,
            linewidth=0,
        )


def _finish(all_axes: Sequence[Any], legend: bool) -> None:
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.title.set_size("medium")
        axes.spines[["top", "right"]].set_visible(False)
        if legend:
            axes.legend(frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.plot", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders (--out of experiments.train)")
    parser.add_argument("--out", help="folder for the pictures (default: the first run's)")
    args = parser.parse_args(argv)
    try:
        for run in args.runs:
            if not read_metrics(run):
                raise UsageError(f"{run} holds no metrics.jsonl with a run's numbers")
        print(draw(args.runs, args.out or args.runs[0]))
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
