"""Pictures of runs: training loss, test result and consensus distance against the epoch, a line per run.

python -m gossip plot runs/a runs/b --out pictures
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.curves import Curve, Point
from experiments.headline import Headline
from experiments.runs import Row, Run, find
from gossip import files
from gossip.errors import UsageError

# Okabe and Ito's palette can be told apart with any kind of colour vision; the dashes help without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
NARROW = 48
"""Labels of so many characters fit into the legend side by side."""

MARKED = 30
"""A line of so few points has each marked."""


def draw(runs: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Draw ``training.png`` and ``consensus.png`` of `runs` into the folder `out`, and return their paths.

    None are drawn, after saying so, where matplotlib is not installed.
    """
    new_figure = figure_maker()
    if new_figure is None:
        return []
    data = {name: Run.read(Path(run)) for name, run in zip(_names(runs), runs, strict=True)}
    judged = {run.headline for run in data.values()}
    if len(judged) > 1:
        raise UsageError("runs on images and runs on text do not go into one picture: draw them apart")
    tested = judged.pop()
    pictures = [Path(out) / name for name in ("training.png", "consensus.png")]

    figure = new_figure(figsize=(9, 3.6), layout="constrained")
    loss, test = figure.subplots(1, 2)
    band = len(data) == 1 and all("loss_min" in row for run in data.values() for row in run.rows)
    for style, (name, run) in enumerate(data.items()):
        _line(loss, run.rows, "loss", name, style, band)
        _line(test, run.rows, tested.key, name, style)
    title = "Training loss (band: all nodes)" if band else "Training loss"
    loss.set(xlabel="epoch", ylabel="training loss", title=title)
    test.set(xlabel="epoch", ylabel=label(tested), title=f"{tested.title.capitalize()} of the averaged model")
    finish((loss, test), legend=len(data) > 1)
    figure.savefig(pictures[0], dpi=150)

    figure = new_figure(figsize=(5, 3.6), layout="constrained")
    consensus = figure.subplots()
    for style, (name, run) in enumerate(data.items()):
        _line(consensus, run.rows, "consensus_distance", name, style)
    consensus.set(xlabel="epoch", ylabel="consensus distance", title="How far the nodes are from their mean")
    if any(row.get("consensus_distance") for run in data.values() for row in run.rows):
        consensus.set_yscale("log")
    finish((consensus,), legend=len(data) > 1)
    figure.savefig(pictures[1], dpi=150)
    return pictures


def draw_comparison(
    curves: Sequence[Curve], consensus: Sequence[Curve], tested: Headline, path: Path
) -> bool:
    """Draw the number `tested` against epochs, bytes and time, and the consensus distance, into `path`.

    Lines are means over seeds, bands ± one standard deviation; × marks where a run diverged. False, after
    saying so, where matplotlib is not installed.
    """
    new_figure = figure_maker()
    if new_figure is None:
        return False
    columns = 2 if max(len(each.label) for each in curves) <= NARROW else 1  # of the legend
    rows = -(-len(curves) // columns)
    figure = new_figure(figsize=(9, 6.4 + 0.22 * rows), layout="constrained")
    axes = list(figure.subplots(2, 2).flat)
    sides: list[tuple[str, Callable[[Point], float]]] = [
        ("epoch", lambda point: point.epoch),
        ("sent by a node, MB", lambda point: point.sent_mb),
        ("training time, minutes", lambda point: point.minutes),
    ]
    for panel, (xlabel, x) in zip(axes, sides, strict=False):
        for style, each in enumerate(curves):
            draw_curve(panel, each, style, x)
        panel.set(xlabel=xlabel, ylabel=label(tested))
    if all(point.sent_mb > 0 for each in curves for point in each.points):
        _log_scale(axes[1])
    distance = axes[3]
    for style, each in enumerate(consensus):
        draw_curve(distance, each, style)
    distance.set(xlabel="epoch", ylabel="consensus distance")
    if any(point.spread.mean > 0 for each in consensus for point in each.points):
        distance.set_yscale("log")
    else:
        distance.set(yticks=[], title="all nodes hold the same model")
    finish(axes, legend=False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=150)
    return True


def label(tested: Headline) -> str:
    """``test accuracy, %``"""
    return f"{tested.title}, {tested.unit}" if tested.unit else tested.title


def figure_maker() -> Callable[..., Any] | None:
    """matplotlib's Figure; None, after saying so, where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plots: matplotlib is not installed (pip install matplotlib)", flush=True)
        return None
    return Figure


def draw_curve(
    axes: Any, curve: Curve, style: int, x: Callable[[Point], float] = lambda point: point.epoch
) -> None:
    """The mean of `curve` in a band of ± one standard deviation; × at the point next to a divergence."""
    color, dashes = COLORS[style % len(COLORS)], DASHES[style % len(DASHES)]
    xs, means = [x(point) for point in curve.points], [point.spread.mean for point in curve.points]
    marker = "o" if len(xs) <= MARKED else ""
    axes.plot(xs, means, dashes, color=color, marker=marker, markersize=3, linewidth=1.4, label=curve.label)
    sds = [point.spread.sd or 0.0 for point in curve.points]
    low, high = ([m + sign * s for m, s in zip(means, sds, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
    for epoch in curve.diverged_at if curve.points else ():
        near = min(curve.points, key=lambda point: abs(point.epoch - epoch))
        axes.plot([x(near)], [near.spread.mean], "x", color=color, markersize=8, markeredgewidth=2)


def _log_scale(axes: Any) -> None:
    """A logarithmic x axis with plain numbers, of less than two decades at 2 and 5 too."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def finish(all_axes: Sequence[Any], legend: bool) -> None:
    """The common look: a light grid, no box."""
    for axes in all_axes:
        axes.grid(alpha=0.3)
        axes.title.set_size("medium")
        axes.spines[["top", "right"]].set_visible(False)
        if legend:
            axes.legend(frameon=False)


def _names(runs: Sequence[str | Path]) -> list[str]:
    short = [Path(run).name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _line(axes: Any, rows: Sequence[Row], key: str, name: str, style: int, band: bool = False) -> None:
    """One run's `key` against the epoch."""
    rows = [row for row in rows if row.get(key) is not None]
    epochs, color = [row["epoch"] for row in rows], COLORS[style % len(COLORS)]
    marker = "o" if len(rows) <= MARKED else ""
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m gossip plot``."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the pictures go (RUN itself; of several RUNs, the current folder)",
    )


def run(args: argparse.Namespace) -> None:
    """Draw the runs, and print where."""
    runs = [each.path for each in find(args.runs) if each.rows]
    if not runs:
        raise UsageError(f"nothing has been measured yet in {', '.join(map(str, args.runs))}")
    out = args.out or (args.runs[0] if len(args.runs) == 1 else Path())
    files.make(out)
    for picture in draw(runs, out):
        print(picture)
