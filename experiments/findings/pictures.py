"""The papers' curves, from our runs: training loss against epochs; gap against compression error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from experiments.curves import Curve, Point, Spread, curve
from experiments.findings.cells import NODES, NORMS, Cell
from experiments.findings.statements import Findings, dcd_bound
from experiments.plot import COLORS, draw_curve, figure_maker, finish

NAMES = {
    "allreduce": "all-reduce",
    "dpsgd": "D-PSGD",
    "naive": "naive",
    "dcd": "DCD",
    "ecd": "ECD",
    "choco": "CHOCO",
}
START = 2.6
"""Losses above it, more than guessing costs (ln 10 = 2.3), are cut off in the pictures."""

EDGE = START - 0.03
"""Where a × stands whose loss was cut off: a little below, or the edge would cut it in half."""

FIG_2A = (("allreduce", 32), ("dpsgd", 32), ("dcd", 8), ("ecd", 8))
FIG_4 = (("allreduce", 32), ("dcd", 8), ("dcd", 4), ("ecd", 8), ("ecd", 4))
OTHERS = (("allreduce", 32), ("choco", 8), ("choco", 4), ("naive", 8), ("naive", 4))

CAPTIONS = {
    "fig2a.png": (
        "Training loss against epochs on 8 nodes, as in Fig. 2a of Tang et al. 2018. Lines are means over "
        "seeds in bands of ± one standard deviation; × marks where a run diverged. Losses above "
        f"{START} are cut off."
    ),
    "fig4.png": "The same with 8 and 4 bits, on 8 and 16 nodes, as in their Fig. 4.",
    "others.png": "The same of CHOCO, and of naive gossip as the control.",
    "errors.png": (
        "Points of test accuracy lost to all-reduce, ± standard deviation of the difference, against the "
        "measured error of the messages; a mark for each codec. Open marks at the upper edge: all its runs "
        "diverged. Dashed: what D-PSGD loses, without an error. Dotted: below this error DCD converges, in "
        "theory."
    ),
}


def draw(findings: Findings, out: Path) -> dict[str, str]:
    """Write all pictures into `out`; their file names and captions. None without matplotlib."""
    if figure_maker() is None:
        return {}
    _losses(findings, (8,), FIG_2A, out / "fig2a.png")
    _losses(findings, NODES, FIG_4, out / "fig4.png")
    _losses(findings, NODES, OTHERS, out / "others.png")
    _errors(findings, out / "errors.png")
    return CAPTIONS


def _losses(findings: Findings, nodes: Sequence[int], methods: Sequence[tuple[str, int]], path: Path) -> None:
    """A panel for each number of nodes and norm; a line for each of `methods` (algorithm, bits)."""
    new_figure = figure_maker()
    assert new_figure is not None
    figure = new_figure(figsize=(9, 3.4 * len(nodes) + 0.5), layout="constrained")
    panels = figure.subplots(len(nodes), len(NORMS), squeeze=False, sharex=True, sharey=True)
    for row, n in zip(panels, nodes, strict=True):
        for axes, norm in zip(row, NORMS, strict=True):
            for style, (algorithm, bits) in enumerate(methods):
                cell = Cell(n, algorithm, bits, norm if bits < 32 else "")
                if cell in findings.groups:
                    line = _visible(curve(findings.groups[cell], "loss"))
                    draw_curve(axes, replace(line, label=f"{NAMES[algorithm]}, {bits} bit"), style)
            axes.set(title=f"{n} nodes; {NORMS[norm]}", ylim=(None, START))
            axes.label_outer()
        row[0].set_ylabel("training loss")
    for axes in panels[-1]:
        axes.set_xlabel("epoch")
    finish(list(panels.flat), legend=False)
    _legend_below(figure, list(panels.flat), len(methods))
    figure.savefig(path, dpi=150)


def _visible(line: Curve) -> Curve:
    """`line` up to where it leaves the picture, if it diverged: its × has to be seen.

    What lies above the picture has no band: it would be a stripe from there down through the others.
    """
    if not line.diverged_at:
        return replace(line, points=tuple(map(_without_stripe, line.points)))
    inside = tuple(takewhile(lambda point: point.spread.mean <= START, line.points))
    edge = Point(min(line.diverged_at), 0.0, 0.0, Spread(EDGE, None, 1))
    return replace(line, points=inside or (edge,))


def _without_stripe(point: Point) -> Point:
    above = point.spread.mean > START
    return replace(point, spread=replace(point.spread, sd=None)) if above else point


def _errors(findings: Findings, path: Path) -> None:
    """Accuracy lost to all-reduce against the measured error of the messages, with DCD's bound.

    Where all runs diverged there is an open marker at the upper edge.
    """
    new_figure = figure_maker()
    assert new_figure is not None
    figure = new_figure(figsize=(9, 3.9), layout="constrained")
    panels = figure.subplots(1, len(NODES), sharex=True, sharey=True)
    for axes, n in zip(panels, NODES, strict=True):
        for style, algorithm in enumerate(("naive", "dcd", "ecd", "choco")):
            look = {"marker": "Xos^"[style], "color": COLORS[style], "linestyle": ""}
            cells = sorted(cell for cell in findings.groups if (cell.nodes, cell.algorithm) == (n, algorithm))
            measured = [(cell, error.mean) for cell in cells if (error := findings.error(cell))]
            points = [(x, gap.mean, gap.sd or 0.0) for cell, x in measured if (gap := findings.gap(cell))]
            xs, ys, sds = zip(*points, strict=True) if points else ((), (), ())
            axes.errorbar(xs, ys, sds, capsize=3, alpha=0.9, label=NAMES[algorithm], **look)
            lost = [x for cell, x in measured if all(run.diverged for run in findings.groups[cell].runs)]
            edge = axes.get_xaxis_transform()  # y = 1 is the upper edge
            for x in lost:
                axes.plot(x, 1, mfc="none", transform=edge, clip_on=False, **look)
        if exact := findings.gap(Cell(n, "dpsgd")):
            axes.axhline(exact.mean, color="0.4", linestyle="--", linewidth=1, label="D-PSGD")
        axes.axvline(dcd_bound(n), color="0.4", linestyle=":", label="DCD's bound")
        axes.axhline(0, color="0.7", linewidth=0.8)
        axes.set(xscale="log", title=f"{n} nodes", xlabel="measured ‖v − C(v)‖/‖v‖ of the messages")
    panels[0].set_ylabel("points below all-reduce")
    finish(list(panels), legend=False)
    _legend_below(figure, panels, 6)
    figure.savefig(path, dpi=150)


def _legend_below(figure: Any, panels: Sequence[Any], columns: int) -> None:
    """One for all `panels`; a method may have runs in one of them alone."""
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False
    )
