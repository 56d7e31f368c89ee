"""The pictures, in colours that anybody can tell apart, and in print by markers and dashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.netlab import findings
from experiments.netlab.methods import METHODS
from experiments.netlab.results import Results, epoch_steps

STYLES = {
    "allreduce": ("#000000", "-", "s"),
    "ddp": ("#000000", ":", "x"),
    "dpsgd": ("#0072B2", "--", "^"),
    "dcd8": ("#D55E00", "-", "o"),
    "ecd8": ("#E69F00", "--", "v"),
    "choco4": ("#009E73", "-", "D"),
    "choco1": ("#009E73", ":", "d"),
    "dgc": ("#CC79A7", "-.", "P"),
}
"""Okabe and Ito's palette; dashes, and a marker that no other line has."""

DPI = 150


def draw(results: Results) -> list[Path]:
    """Draw what there are numbers for, beside the results; the files. Without matplotlib none: says so."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        print("no pictures: matplotlib is not installed (pip install matplotlib)", flush=True)
        return []
    if not results.cells:
        return []
    return [path for name, paint in PICTURES.items() if (path := _save(results, name, paint)) is not None]


def _save(results: Results, name: str, paint: Callable[[Results], Any]) -> Path | None:
    figure = paint(results)
    if figure is None:
        return None
    path = results.folder / f"{name}.png"
    figure.savefig(path, dpi=DPI)
    return path


def _figure(rows: int, columns: int, width: float, height: float, **kwargs: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def _line(axes: Any, key: str, x: Sequence[float], y: Sequence[float], **kwargs: Any) -> None:
    color, dashes, marker = STYLES[key]
    face = "none" if dashes != "-" else color
    axes.plot(
        x,
        y,
        dashes,
        color=color,
        marker=marker,
        markersize=5,
        mfc=face,
        lw=1.4,
        label=METHODS[key].label,
        **kwargs,
    )


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3, which="major")
    axes.title.set_size("medium")
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(),
        unique.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize="small",
    )


def _ticks(axis: Any, values: Sequence[float]) -> None:
    """Ticks where something was measured, and nowhere else."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def _plain_log(*axes: Any, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Logarithmic, with 1, 2, 5, 10, … written out."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in axes:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


# -- time per epoch, Fig. 3 of the paper -------------------------------------------------------------------


def _epoch_time(results: Results) -> Any:
    bandwidths = sorted({b for b, _ in results.networks()})
    latencies = sorted({latency for _, latency in results.networks()})
    fixed = [
        ("latency", latencies[0], f"latency {1e3 * latencies[0]:g} ms"),
        ("latency", latencies[-1], f"latency {1e3 * latencies[-1]:g} ms"),
        ("bandwidth", bandwidths[-1], f"bandwidth {bandwidths[-1] / 1e6:g} Mbit/s"),
        ("bandwidth", bandwidths[0], f"bandwidth {bandwidths[0] / 1e6:g} Mbit/s"),
    ]
    figure, grid = _figure(2, 4, 12, 6.2, sharey="row")
    steps = epoch_steps(results)
    for row, overlap in zip(grid, (False, True), strict=True):
        for axes, (what, value, title) in zip(row, fixed, strict=True):
            along = bandwidths if what == "latency" else latencies
            scale = 1e-6 if what == "latency" else 1e3
            for key in METHODS:
                points = []
                for x in along:
                    network = (x, value) if what == "latency" else (value, x)
                    if (cell := results.cell(key, overlap, *network)) is not None:
                        points.append((x * scale, steps * cell["step_ms"] / 1e3))
                if points:
                    _line(axes, key, *zip(*points, strict=True))
            axes.set(xscale="log", title=title)
            _plain_log(axes.yaxis)
            axes.set_xlabel("bandwidth, Mbit/s" if what == "latency" else "latency one way, ms")
            if what == "latency":
                axes.invert_xaxis()
            _ticks(axes.xaxis, [x * scale for x in along])
            _finish(axes)
        row[0].set_ylabel(f"{'with' if overlap else 'without'} overlap\ntime per epoch, s")
    figure.suptitle(_setting(results), fontsize="small")
    _legend(figure, grid[0][0], 4)
    return figure


def _setting(results: Results) -> str:
    about = results.about
    return f"{about['hosts']} hosts on a ring; {about['compute']}"


# -- loss against time, Fig. 2 (b) to (d) ------------------------------------------------------------------


def _loss(results: Results) -> Any:
    if not results.losses:
        return None
    places = list(findings.corners(results).items())
    figure, grid = _figure(2, len(places), 12, 6.2, sharey=True)
    for row, overlap in zip(grid, (False, True), strict=True):
        for axes, (_, network) in zip(row, places, strict=True):
            for key in METHODS:
                # DDP's numbers are those of an exact all-reduce.
                losses = results.losses.get("allreduce" if key == "ddp" else key)
                cell = results.cell(key, overlap, *network)
                if losses is not None and cell is not None:
                    smooth = _smooth(losses)
                    seconds = [cell["step_ms"] / 1e3 * (i + 1) for i in range(len(smooth))]
                    _line(axes, key, seconds, smooth, markevery=(0.1, 0.2))
            axes.set(title=findings.show(network), xlabel="time, s")
            _plain_log(axes.xaxis, subs=(1, 3))
            _finish(axes)
        row[0].set_ylabel(f"{'with' if overlap else 'without'} overlap\ntraining loss")
    figure.suptitle(_setting(results), fontsize="small")
    _legend(figure, grid[0][0], 4)
    return figure


def _smooth(losses: Sequence[float], window: int = 5) -> list[float]:
    """Means over the last `window` steps."""
    return [
        sum(part) / len(part) for i in range(len(losses)) if (part := losses[max(0, i - window + 1) : i + 1])
    ]


# -- overlap -----------------------------------------------------------------------------------------------


def _overlap(results: Results) -> Any:
    found = list(findings.hidings(results))
    if not found:
        return None
    figure, grid = _figure(1, 2, 10, 4.2)
    on, off = grid[0]
    for key, method in METHODS.items():
        mine = [h for h in found if h.method == key]
        if not mine:
            continue
        color, dashes, marker = STYLES[key]
        look = {
            "ls": "",
            "color": color,
            "marker": marker,
            "mfc": color if dashes == "-" else "none",
            "label": method.label,
        }
        ratios = [h.alone / h.compute for h in mine]
        on.plot(ratios, [100 * h.exposed / h.step for h in mine], **look)
        off.plot([h.alone for h in mine], [h.exposed_alone for h in mine], **look)
    on.axvline(1, color="0.5", lw=1)
    on.axhline(100 * findings.HIDDEN, color="0.5", lw=1, ls="--")
    _plain_log(on.xaxis, off.xaxis, off.yaxis)
    on.set(
        title="with overlap: hidden as long as it fits",
        xlabel="exchange alone / forward + backward",
        ylabel="share of the step that waits, %",
    )
    ends = [min(h.alone for h in found), max(h.alone for h in found)]
    off.plot(ends, ends, color="0.5", lw=1)
    off.set(
        title="without: the step waits for all of it",
        xlabel="exchange alone, ms",
        ylabel="waited for, ms per step",
    )
    for axes in (on, off):
        _finish(axes)
    figure.suptitle(_setting(results), fontsize="small")
    _legend(figure, on, 5)
    return figure


# -- the planner -------------------------------------------------------------------------------------------


def _planner(results: Results) -> Any:
    found = list(findings.predictions(results))
    if not found:
        return None
    figure, ((axes,),) = _figure(1, 1, 5.4, 5)
    ends = [min(p.measured for p in found) * 0.8, max(p.measured for p in found) * 1.25]
    axes.plot(ends, ends, color="0.5", lw=1)
    low, high = ([(1 + s * findings.TOLERANCE) * x for x in ends] for s in (-1, 1))
    axes.fill_between(
        ends, low, high, color="0.5", alpha=0.2, lw=0, label=f"± {100 * findings.TOLERANCE:.0f} %"
    )
    for key, method in METHODS.items():
        mine = [p for p in found if p.method == key]
        if mine:
            color, dashes, marker = STYLES[key]
            axes.plot(
                [p.measured for p in mine],
                [p.predicted for p in mine],
                ls="",
                color=color,
                marker=marker,
                mfc=color if dashes == "-" else "none",
                label=method.label,
            )
    _plain_log(axes.xaxis, axes.yaxis)
    axes.set(
        xlim=ends,
        ylim=ends,
        xlabel="measured, ms per step",
        ylabel="predicted, ms per step",
        title="the planner, fitted to two exchanges",
    )
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize="small")
    _finish(axes)
    figure.suptitle(_setting(results), fontsize="x-small")
    return figure


PICTURES = {"epoch_time": _epoch_time, "overlap": _overlap, "planner": _planner, "loss": _loss}
"""Name, without .png, and what draws it if there are numbers for it."""
