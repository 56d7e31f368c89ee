"""The grid of experiments/findings.toml: its cells, and the runs of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.curves import Group
from experiments.runs import Run, flag
from experiments.sweep.grid import Point, SweepFile, options_of
from gossip.errors import UsageError

FILE = Path(__file__).parents[1] / "findings.toml"

CODECS = {
    None: (32, ""),
    "qsgd:bits=8,norm=max,block=512": (8, "max"),
    "qsgd:bits=4,norm=max,block=512": (4, "max"),
    "per-tensor:(qsgd:bits=8,norm=l2,block=tensor)": (8, "l2"),
    "per-tensor:(qsgd:bits=4,norm=l2,block=tensor)": (4, "l2"),
}
"""The compressors of findings.toml: bits and norm. ``max``: per block of 512; ``l2``: per tensor."""

NORMS = {"max": "max norm, block 512", "l2": "l2 norm, per tensor"}
NODES = (8, 16)


@dataclass(frozen=True, order=True)
class Cell:
    """A place in the grid; `norm` is ``""`` and `bits` 32 for exact methods."""

    nodes: int
    algorithm: str
    bits: int = 32
    norm: str = ""

    @property
    def messages(self) -> str:
        """``8 bit, max norm, block 512``"""
        return f"{self.bits} bit, {NORMS[self.norm]}" if self.norm else f"{self.bits} bit"


@cache
def points() -> tuple[Point, ...]:
    """All runs of the grid."""
    return tuple(SweepFile.read(FILE).points())


@cache
def seeds() -> frozenset[int]:
    """Those of every cell."""
    return frozenset(point.args.seed for point in points())


def grouped(runs: Iterable[Run]) -> dict[Cell, Group]:
    """`runs` by cell; a group is labelled with the name of its runs, without the seed.

    Raises:
        UsageError: a run that is not of the grid, one that is there twice, or runs on different data.
    """
    names: dict[Cell, str] = {}
    members: dict[Cell, dict[int, Run]] = {}
    trained_on: dict[str, Run] = {}
    for run in runs:
        point = _point(run)
        cell = Cell(point.nodes, point.args.algorithm, *CODECS[point.args.compressor])
        names[cell] = point.name.removesuffix(f"-seed{run.seed}")
        same = members.setdefault(cell, {}).setdefault(run.seed, run)
        if same is not run:
            raise UsageError(f"{same.path} and {run.path} are the same run: name one of them")
        if digest := run.settings.get("data"):
            trained_on.setdefault(digest, run)
    if len(trained_on) > 1:
        shown = ", ".join(f"{run.path} on {digest}" for digest, run in trained_on.items())
        raise UsageError(f"these runs read different data and cannot be compared: {shown}")
    return {cell: Group(names[cell], tuple(own.values())) for cell, own in members.items()}


def _point(run: Run) -> Point:
    """Where in the grid `run` is. Raises `UsageError`: nowhere; what differs from the nearest point."""
    own = options_of(run)
    differences, point = min(
        ((point.differences(own), point) for point in points()), key=lambda pair: len(pair[0])
    )
    if differences:
        shown = (f"{_option(key, value)} in place of {_option(key, was)}" for key, was, value in differences)
        raise UsageError(
            f"{run.path} is no run of experiments/{FILE.name}: the nearest, {point.name}, has "
            + ", ".join(shown)
        )
    return point


def _option(key: str, value: Any) -> str:
    return f"no --{key}" if value is None else flag(key, value)
