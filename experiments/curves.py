"""Runs that differ only in their seed, as one row of a table or one line of a picture. Needs no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.headline import Headline
from experiments.runs import IMMATERIAL, Row, Run
from gossip.errors import UsageError

MB = 2**20
ALWAYS_SHOWN = ("algorithm", "compressor")
DEFAULTS = {"algorithm": "dpsgd", "nodes": 1, "virtual-nodes": False, "data": "not recorded"}
"""What a run whose settings leave a key out was run with."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (None for a single value) of `count` values."""

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None for no values."""
        if not values:
            return None
        finite = all(map(math.isfinite, values))  # a perplexity may be infinite
        sd = None if len(values) == 1 else statistics.stdev(values) if finite else math.nan
        return cls(statistics.fmean(values), sd, len(values))

    def minus(self, other: Spread) -> Spread:
        """The difference of the means, and its standard deviation √(s²/n + s'²/n') as the `sd`."""
        sd = None
        if self.sd is not None and other.sd is not None:
            sd = math.sqrt(self.sd**2 / self.count + other.sd**2 / other.count)
        return Spread(self.mean - other.mean, sd, min(self.count, other.count))

    def show(self, form: str) -> str:
        """``73.20 ± 0.15``; `form` is a format such as ``.2f`` or ``+.2f``."""
        mean = f"{self.mean:{form}}".replace("-", "−") if form.startswith("+") else f"{self.mean:{form}}"
        return mean if self.sd is None else f"{mean} ± {self.sd:{form.lstrip('+')}}"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed; `label` is what tells the group from the others beside it."""

    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.finished]

    @property
    def diverged(self) -> list[Run]:
        return [run for run in self.runs if run.diverged]

    @property
    def headline(self) -> Headline:
        """The number that the runs are judged by."""
        return self.runs[0].headline

    def spread(self, value: str | Callable[[dict[str, Any]], float | None]) -> Spread | None:
        """Over the finished runs; `value` is a key of the summary, or computes from it."""
        get = value if callable(value) else lambda summary: summary.get(value)
        values = [get(dict(run.summary or {})) for run in self.finished]
        return Spread.of([v for v in values if v is not None])


def group(runs: Iterable[Run], alike: frozenset[str] = frozenset()) -> list[Group]:
    """`runs` in groups that differ only in their seed, in the order of each group's first run.

    Args:
        alike: settings that make no difference either.

    Raises:
        UsageError: a seed twice in a group, or workloads that are judged by different numbers.
    """
    by_settings: dict[tuple[tuple[str, Any], ...], list[Run]] = {}
    for run in runs:
        settings = {k: v for k, v in _settings(run).items() if k not in IMMATERIAL | alike | {"seed"}}
        by_settings.setdefault(tuple(sorted(settings.items())), []).append(run)
    members = list(by_settings.values())
    for same in members:
        seeds: dict[int, Run] = {}
        for run in same:
            if run.seed in seeds:
                raise UsageError(f"{seeds[run.seed].path} and {run.path} are the same run: name one of them")
            seeds[run.seed] = run
    judged = {run.headline: run.path for same in members for run in same if run.summary is not None}
    if len(judged) > 1:
        shown = ", ".join(f"{path} by {by.title}" for by, path in judged.items())
        raise UsageError(f"these runs are judged by different numbers and cannot be compared: {shown}")
    firsts = [_settings(same[0]) for same in members]
    keys = dict.fromkeys(key for settings in firsts for key in settings if key not in IMMATERIAL | {"seed"})
    varying = [key for key in keys if len({settings.get(key) for settings in firsts}) > 1]
    return [
        Group(_label(settings, varying), tuple(same)) for settings, same in zip(firsts, members, strict=True)
    ]


def _settings(run: Run) -> Mapping[str, Any]:
    absent = {key: value for key, value in DEFAULTS.items() if key not in run.settings}
    return {**run.settings, **absent}


def _label(settings: Mapping[str, Any], varying: Sequence[str]) -> str:
    names = [settings.get(key) for key in ALWAYS_SHOWN]
    words = [str(name) for name in names if name not in (None, "identity")]
    others = [key for key in varying if key not in ALWAYS_SHOWN]
    return ", ".join([" ".join(words), *(_told(key, settings.get(key)) for key in others)])


def _told(key: str, value: Any) -> str:
    """``lr 0.1``, ``overlap``, ``no overlap``."""
    if value is True:
        return key
    return f"no {key}" if value is None or value is False else f"{key} {value}"


@dataclass(frozen=True)
class Point:
    """A group at one step: `epoch`, MB that a node has sent, minutes of training, and the values' spread."""

    epoch: float
    sent_mb: float
    minutes: float
    spread: Spread


@dataclass(frozen=True)
class Curve:
    """One number of a group against its step, and the epochs at which its runs diverged."""

    label: str
    points: tuple[Point, ...]
    diverged_at: tuple[float, ...]


def curve(runs: Group, key: str) -> Curve:
    """`key` of metrics.jsonl, mean and deviation over the runs that have come to each step.

    Minutes are those of training steps, without tests and checkpoints.
    """
    at: dict[int, list[tuple[Row, float, float]]] = {}
    for run in runs.runs:
        sent = minutes = 0.0
        before = 0
        for row in run.rows:
            steps, before = row["step"] - before, row["step"]
            sent += steps * row["bytes_sent_per_step"] / MB
            minutes += steps * row["step_ms"] / 60_000
            if row.get(key) is not None:
                at.setdefault(row["step"], []).append((row, sent, minutes))
    points = []
    for _, found in sorted(at.items()):
        spread = Spread.of([row[key] for row, _, _ in found])
        assert spread is not None
        mean_sent = statistics.fmean(sent for _, sent, _ in found)
        mean_minutes = statistics.fmean(minutes for _, _, minutes in found)
        points.append(Point(found[0][0]["epoch"], mean_sent, mean_minutes, spread))
    ends = tuple(float((run.summary or {})["epochs"]) for run in runs.diverged)
    return Curve(runs.label, tuple(points), ends)
