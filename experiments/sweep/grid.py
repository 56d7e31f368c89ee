"""A sweep file: settings of the training script, of which some are lists, and the grid of runs they span.

    dataset = "cifar10"             # a flag of experiments.train, the same for all runs
    nodes = [8, 16]                 # a list: a run for each value
    seed = [1, 2, 3]

    [[runs]]                        # blocks add to what stands above, each spanning a grid of its own;
    algorithm = "allreduce"         # without any, there is one grid

    [[runs]]
    algorithm = ["dcd", "choco"]
    compressor = ["qsgd:bits=8", "qsgd:bits=4"]

    [about]                         # for people: source, what is different, …
    [full]                          # settings that replace the ones above with --full; may hold [[full.runs]]
    [tune]                          # lr = [0.05, 0.1, 0.2]: what `python -m gossip tune` tries

A run's name is made of its algorithm, its compressor, the keys that are lists or stand in a block, and its
seed; so one point of the grid always has the same folder.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import config, recipe, toml
from experiments.runs import FOR_SPEED, IMMATERIAL, Run, settled
from gossip.errors import UsageError
from gossip.suggest import nearest

TABLES = ("about", "full", "tune", "tuned")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One run of a grid.

    Attributes:
        name: of its folder.
        settings: what the file says about it: flags of the training script, without dashes in front.
        args: all options of the training script that follow from it.
    """

    name: str
    settings: Mapping[str, Any]
    args: argparse.Namespace

    @property
    def nodes(self) -> int:
        return self.args.nodes or 1

    @property
    def threads(self) -> int:
        """Of each process; where the file says nothing, 1: a sweep's runs share the cores."""
        return self.args.threads or 1

    def differences(self, own: Mapping[str, Any], free: Iterable[str] = ()) -> list[tuple[str, Any, Any]]:
        """Each option (with dashes) that makes a run with the options `own` another one, its value and ours.

        Args:
            own: as of `options_of`.
            free: options, with underscores, that do not.
        """
        kept = (
            IMMATERIAL | FOR_SPEED | {name.replace("_", "-") for name in (*config.ABOUT_THE_COMMAND, *free)}
        )
        asked, own = settled({**vars(self.args), "nodes": self.nodes}), settled(own)
        pairs = ((name.replace("_", "-"), own.get(name), asked.get(name)) for name in {**asked, **own})
        return [(key, was, value) for key, was, value in pairs if key not in kept and was != value]


def options_of(run: Run) -> dict[str, Any]:
    """All options of the training script that a run in its folder was run with."""
    return vars(config.parse(config.flags(run.config, run.path / "config.toml")))


@dataclass(frozen=True)
class SweepFile:
    """A sweep file, read; `base` and `blocks` may hold lists.

    Attributes:
        full: the table of that name as it stands there; empty if the other settings are those already.
    """

    path: Path
    base: Settings
    blocks: tuple[Settings, ...]
    about: Mapping[str, Any]
    tune: Mapping[str, Any]
    full: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, full: bool = False) -> SweepFile:
        """Read `path`; with `full`, its settings in ``[full]`` replace the others.

        Raises:
            UsageError: no such file, not TOML, a table that has no meaning.
        """
        content = toml.read(path)
        for name in TABLES:
            if not isinstance(content.get(name, {}), dict):
                raise UsageError(f"{path}: {name} is a table: write [{name}], and below it what it holds")
        overlay = content.pop("full", {})
        if full:
            if not overlay:
                raise UsageError(f"{path} has no [full] settings; leave --full out")
            content |= overlay
            overlay = {}
        tables = {name: content.pop(name, {}) for name in TABLES}
        blocks = content.pop("runs", [{}])
        for key, value in content.items():
            if isinstance(value, dict):
                near = nearest(key, (*TABLES, "runs"))
                hint = f"did you mean [{near}]?" if near else f"known tables: {', '.join(TABLES)}, [runs]"
                raise UsageError(f"{path}: unknown table [{key}]; {hint}")
        if not (isinstance(blocks, list) and blocks and all(isinstance(block, dict) for block in blocks)):
            raise UsageError(f"{path}: write runs as one or more [[runs]] blocks")
        base, *rest = [_dashed(settings, path) for settings in (content, *blocks)]
        return cls(path, base, tuple(rest), tables["about"], tables["tune"], overlay)

    def points(self, seeds: Sequence[int] = (), overrides: Mapping[str, Any] | None = None) -> list[Point]:
        """All runs, in the file's order, those of the first seed before those of the second.

        Args:
            seeds: in place of the file's.
            overrides: settings of all runs, whatever the file says.

        Raises:
            UsageError: an unknown key, a value that does not fit, two runs of one name.
        """
        named = [key for key, value in self.base.items() if isinstance(value, list)]
        named = list(dict.fromkeys([*named, *(key for block in self.blocks for key in block)]))
        found: dict[str, Point] = {}
        for block in self.blocks:
            settings = {**self.base, **block, **_dashed(overrides or {}, self.path)}
            own = list(seeds) or settings.pop("seed", 0)
            for one in _product(settings, self.path):
                for point in self._points(one, own if isinstance(own, list) else [own], named):
                    other = found.setdefault(point.name, point)
                    if other.args != point.args:
                        raise UsageError(
                            f"{self.path}: two different runs would both be called {point.name}; write what "
                            "they differ in as a list, or in the [[runs]] blocks"
                        )
        order = list(dict.fromkeys(point.args.seed for point in found.values()))
        return sorted(found.values(), key=lambda point: order.index(point.args.seed))

    def _points(self, settings: Settings, seeds: list[Any], named: Iterable[str]) -> Iterator[Point]:
        """One combination of settings with each of the seeds; it is checked once."""
        settings.pop("seed", None)
        flags = config.flags(settings, self.path)
        try:
            for seed in seeds:
                config.parse(config.flags({"seed": seed}, self.path))
            args = config.parse(flags)
            recipe.check(argparse.Namespace(**vars(args) | {"nodes": args.nodes or 1}))
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None
        for seed in seeds:
            seeded = argparse.Namespace(**vars(args) | {"seed": seed})
            yield Point(_name(settings, named, seeded), {**settings, "seed": seed}, seeded)


def _dashed(settings: Mapping[str, Any], path: Path) -> Settings:
    dashed = {key.replace("_", "-"): value for key, value in settings.items()}
    if len(dashed) < len(settings):
        twice = next(key for key in settings if "_" in key and key.replace("_", "-") in settings)
        raise UsageError(f"{path}: {twice} and {twice.replace('_', '-')} are one setting; leave one out")
    return dashed


def _product(settings: Settings, path: Path) -> Iterator[Settings]:
    axes = {key: value if isinstance(value, list) else [value] for key, value in settings.items()}
    for key, values in axes.items():
        if not values:
            raise UsageError(f"{path}: {key} is an empty list")
    for one in itertools.product(*axes.values()):
        yield dict(zip(axes, one, strict=True))


def _name(settings: Settings, named: Iterable[str], args: argparse.Namespace) -> str:
    parts = [_slug(args.algorithm)]
    if args.compressor is not None:
        parts.append(_slug(args.compressor))
    parts += [
        f"{key}{_slug(settings[key])}"
        for key in named
        if key in settings and key not in ("algorithm", "compressor", "seed")
    ]
    return "-".join([*parts, f"seed{args.seed}"])


def _slug(value: Any) -> str:
    """``qsgd:bits=4,norm=l2`` -> ``qsgd-bits4-norml2``: what is fine in a file name of any system."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^\w.+]+", "-", text.replace("=", "")).strip("-")
