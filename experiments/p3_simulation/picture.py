"""The picture of a simulated step: what rank 0 computes and sends, by method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.p3_simulation.simulator import Run, Track

ROWS: tuple[tuple[str, tuple[Track, ...]], ...] = (
    ("computes forward", ("forward",)),
    ("computes backward", ("backward",)),
    ("sends gradients", ("push",)),
    ("sends means", ("pull",)),
)


def draw(runs: Mapping[str, Run], layers: Sequence[str], title: str, path: Path) -> None:
    """Draw the last two steps of rank 0, a panel per run, into `path`.

    Args:
        runs: by the name of the method.
        layers: names, in forward order.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    shades = matplotlib.colormaps["cividis"]  # for any kind of colour vision; from dark to light in print
    scale = Normalize(0, max(1, len(layers) - 1))
    figure = Figure(figsize=(9, 1.2 + 1.55 * len(runs)), layout="constrained")
    all_axes = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(all_axes, runs.items(), strict=True):
        begin = run.ends[-3] if len(run.ends) > 2 else 0.0
        for row, (_, tracks) in enumerate(ROWS):
            spans = [s for s in run.spans if s.rank == 0 and s.track in tracks and s.end > begin]
            bars = [(s.start - begin, s.end - s.start) for s in spans]
            colors = [shades(scale(s.layer)) for s in spans]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colors, linewidth=0, rasterized=True)
        for end in run.ends[-2:]:
            axes.axvline(end - begin, color="black", linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(ROWS)), [label for label, _ in ROWS], fontsize="small")
        axes.invert_yaxis()
        axes.set_title(f"{name}: {run.step_time:.3g} s per step", fontsize="medium", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1].set_xlabel("seconds (dashed: the slowest rank's backward ends)")
    all_axes[-1].set_xlim(left=0)
    bar = figure.colorbar(ScalarMappable(scale, shades), ax=list(all_axes), pad=0.01, aspect=40)
    bar.set_ticks([0, len(layers) - 1], labels=[f"first layer\n({layers[0]})", f"last layer\n({layers[-1]})"])
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
