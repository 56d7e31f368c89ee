"""The papers' curves, from our runs: training loss against epochs; gap against compression error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from experiments.curves import Curve, curve
from experiments.findings.statements import NODES, NORMS, Cell, Findings, dcd_bound
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

FIG_2A = (("allreduce", 32), ("dpsgd", 32), ("dcd", 8), ("ecd", 8))
FIG_4 = (("allreduce", 32), ("dcd", 8), ("dcd", 4), ("ecd", 8), ("ecd", 4))
OTHERS = (("allreduce", 32), ("choco", 8), ("choco", 4), ("naive", 8), ("naive", 4))


def draw(findings: Findings, out: Path) -> list[str]:
    """Write all pictures into `out`; their file names. None without matplotlib."""
    if figure_maker() is None:
        return []
    for name, nodes, methods in (("fig2a", (8,), FIG_2A), ("fig4", NODES, FIG_4), ("others", NODES, OTHERS)):
        _losses(findings, nodes, methods, out / f"{name}.png")
    _errors(findings, out / "errors.png")
    return ["fig2a.png", "fig4.png", "others.png", "errors.png"]


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
    _legend_below(figure, panels[0][0], len(methods))
    figure.savefig(path, dpi=150)


def _visible(line: Curve) -> Curve:
    """`line` up to where it leaves the picture, if it diverged: its × has to be seen."""
    inside = tuple(takewhile(lambda point: point.spread.mean <= START, line.points))
    return replace(line, points=inside) if line.diverged_at else line


def _errors(findings: Findings, path: Path) -> None:
    """Accuracy lost to all-reduce against the measured error of the messages, with DCD's bound.

    Where all seeds diverged there is an open marker at the upper edge.
    """
    new_figure = figure_maker()
    assert new_figure is not None
    figure = new_figure(figsize=(9, 3.9), layout="constrained")
    panels = figure.subplots(1, len(NODES), sharey=True)
    for axes, n in zip(panels, NODES, strict=True):
        for style, algorithm in enumerate(("naive", "dcd", "ecd", "choco")):
            marker = "Xos^"[style]
            cells = sorted(cell for cell in findings.groups if (cell.nodes, cell.algorithm) == (n, algorithm))
            points = [
                (error.mean, gap.mean, gap.sd or 0.0, cell)
                for cell in cells
                if (error := findings.error(cell)) and (gap := findings.gap(cell))
            ]
            lost = [
                error.mean for cell in cells if not findings.gap(cell) and (error := findings.error(cell))
            ]
            edge = axes.get_xaxis_transform()  # y = 1 is the upper edge
            axes.plot(
                lost, [1] * len(lost), marker, color=COLORS[style], mfc="none", transform=edge, clip_on=False
            )
            if points:
                x, y, sd, _ = zip(*points, strict=True)
                axes.errorbar(
                    x, y, sd, fmt=marker, color=COLORS[style], capsize=3, label=NAMES[algorithm], alpha=0.9
                )
        axes.axvline(dcd_bound(n), color="0.4", linestyle=":", label="DCD's bound")
        axes.axhline(0, color="0.7", linewidth=0.8)
        axes.set(xscale="log", title=f"{n} nodes", xlabel="measured ‖v − C(v)‖/‖v‖ of the messages")
    panels[0].set_ylabel("points below all-reduce")
    finish(list(panels), legend=False)
    _legend_below(figure, panels[0], 5)
    figure.savefig(path, dpi=150)


def _legend_below(figure: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
