"""Run folders, read: what a run was asked to do, how it ended, and what it measured. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments import toml
from experiments.headline import ACCURACY, PERPLEXITY, Headline
from gossip.errors import UsageError

Row = dict[str, Any]

IMMATERIAL = frozenset({"data-dir", "timeout", "checkpoint-every"})
"""Settings that change neither what a run computes nor how long its steps take (checkpoints add to its whole
time alone)."""

FOR_SPEED = frozenset({"threads", "device", "overlap", "progress", "order"})
"""Settings that change how long its steps take, but not what is computed (up to rounding)."""


WITH_A_CODEC_OF_THEIR_OWN = frozenset({"qsgd", "signsgd"})
"""Methods that do not take ``identity`` where no compressor is named. A test compares it with the methods."""


def settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings`, with nothing in them that is so anyway: a compressor that names the default."""
    method = str(settings.get("algorithm", "")).partition(":")[0]
    named = settings.get("compressor") == "identity" and method not in WITH_A_CODEC_OF_THEIR_OWN
    return {key: value for key, value in settings.items() if not (named and key == "compressor")}


def flag(key: str, value: Any) -> str:
    """A setting as one types it: ``--lr=0.1``, ``--overlap``, ``--no-overlap``."""
    if isinstance(value, bool):
        return f"--{key}" if value else f"--no-{key}"
    return f"--{key}={value}"


def read_summary(path: Path) -> dict[str, Any] | None:
    """A run's summary.json; None while it has none."""
    return _read_json(path / "summary.json")


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise UsageError(f"{file} is damaged: delete it and run that run again") from None


def read_metrics(path: str | Path) -> list[Row]:
    """The lines of a run's metrics.jsonl; a last line that was cut short is left out."""
    try:
        lines = (Path(path) / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if number < len(lines):
                raise UsageError(f"{path}/metrics.jsonl, line {number} is no JSON object") from None
    return rows


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        config: the flags it was run with, as in its config.toml, keys with ``-``.
        summary: as in summary.json; None for a run that has not ended properly.
    """

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: Path) -> Run:
        """Raises `UsageError`: there is no run in `path`."""
        if not (path / "config.toml").exists():
            raise UsageError(f"{path} holds no run: name a run folder (--out of experiments.train)")
        return cls(path, toml.read(path / "config.toml"), read_summary(path))

    @property
    def diverged(self) -> bool:
        return self.summary is not None and bool(self.summary["diverged"])

    @property
    def finished(self) -> bool:
        """To its end: not broken off, and not diverged."""
        return self.summary is not None and not self.diverged

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """`config`, and what else makes it another run: ``data``, which it has read, and ``virtual-nodes``.

        Runs from before these were written down lack them.
        """
        told = {**(self.summary or {}), **self._environment}
        beside = {"data": told.get("data"), "virtual-nodes": told.get("virtual_nodes")}
        return {**settled(self.config), **{key: value for key, value in beside.items() if value is not None}}

    @cached_property
    def _environment(self) -> Mapping[str, Any]:
        return _read_json(self.path / "env.json") or {}

    @property
    def caveat(self) -> str:
        """What must stand beside results on its data; "" if nothing must, or the run is older than this."""
        return str(self._environment.get("data_caveat", ""))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The lines of metrics.jsonl."""
        return read_metrics(self.path)

    @property
    def headline(self) -> Headline:
        """The number that it is judged by."""
        text = str(self.config.get("dataset", "")).partition(":")[0] == "text"
        return PERPLEXITY if text else ACCURACY


def find(paths: Iterable[Path]) -> list[Run]:
    """The runs in `paths`: run folders, or folders of them (what a sweep leaves), in the given order.

    Raises:
        UsageError: a path that is neither.
    """
    found: dict[Path, Run] = {}
    for path in paths:
        inside = sorted(config.parent for config in path.glob("*/config.toml"))
        for folder in [path] if (path / "config.toml").exists() or not inside else inside:
            found.setdefault(folder.resolve(), Run.read(folder))
    return list(found.values())
