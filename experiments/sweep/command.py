"""Run what is missing of a grid of training runs, which a TOML file describes.

    python -m gossip sweep experiments/findings.toml --seeds 1,2,3 --set data-dir=data

Finished runs are left alone, so the command can be repeated until all is done. docs/experiments.md has the
form of the file.
"""

from __future__ import annotations

import argparse
import fnmatch
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments import config, toml
from experiments.sweep import slurm
from experiments.sweep.grid import Point, SweepFile
from experiments.sweep.runner import Runner, changed_error, state
from gossip import files
from gossip.errors import UsageError
from gossip.transport.environment import launched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m gossip sweep``."""
    add_common_arguments(parser)
    add = parser.add_argument
    add("--list", action="store_true", help="only say what there is to run, and how far it is")
    add("--emit-slurm", action="store_true", help="only write an sbatch script with a task for each run")


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``sweep`` and ``tune`` share."""
    add = parser.add_argument
    add("file", type=Path, metavar="FILE.toml", help="the sweep")
    add("--out", type=Path, metavar="DIR", help="for the run folders (runs/FILE; tune: runs/FILE-tune)")
    add("--full", action="store_true", help="with the file's [full] settings: longer, mostly as published")
    add(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all runs, whatever the file says, such as data-dir=data; may be given again",
    )
    add("--seeds", type=whole_numbers, default=[], metavar="1,2,3", help="a run for each (the file's seed)")
    add("--only", metavar="NAME", help="only runs with this name; * stands for anything")
    add("--mpi", action="store_true", help="an MPI rank for each node, under mpirun (default: virtual nodes)")
    add(
        "--jobs",
        type=config.positive_int,
        metavar="N",
        help="runs at a time (as many as there are cores for; one where there is a GPU)",
    )


def run(args: argparse.Namespace) -> int:
    """The command. Returns its exit code."""
    points = chosen(SweepFile.read(args.file, args.full), args)
    out = folder(args)
    if args.list:
        for point in points:
            print(f"{state(point, out, args.mpi):<10}  {point.name}")
        return 0
    if args.emit_slurm:
        print(shlex.join(["sbatch", str(slurm.write(args, points, out))]))
        return 0
    code = run_points(points, out, args)
    if code == 0:
        print(shlex.join(["python", "-m", "gossip", "compare", str(out)]))
    return code


def chosen(file: SweepFile, args: argparse.Namespace) -> list[Point]:
    """The runs of `file` that the options name. Raises `UsageError` if there are none."""
    points = file.points(args.seeds, dict(args.set))
    if args.only is None:
        return points
    found = [point for point in points if fnmatch.fnmatchcase(point.name, args.only)]
    if not found:
        head = f"--only {args.only}: there is no such run in {args.file}; it has"
        raise UsageError("\n".join([head, *(point.name for point in points)]))
    return found


def run_points(points: Sequence[Point], out: Path, args: argparse.Namespace) -> int:
    """Run those of `points` that are not done; the exit code.

    Raises:
        UsageError: runs of other settings are in the way, and all are named; started by mpirun.
    """
    if launched():
        raise UsageError("start it without mpirun: it starts every run by itself, under mpirun with --mpi")
    states = [state(point, out, args.mpi) for point in points]
    changed = [p for p, found in zip(points, states, strict=True) if found == "changed"]
    if changed:
        raise changed_error(changed, out, args.mpi)
    missing = [p for p, found in zip(points, states, strict=True) if found in ("broken off", "new")]
    counts = ", ".join(f"{count} {found}" for found, count in Counter(states).items())
    jobs = args.jobs or default_jobs(points, args.mpi)
    print(f"{len(points)} runs in {out}: {counts}; {min(jobs, len(missing))} at a time", flush=True)
    files.make(out)
    runner = Runner(out, jobs, args.mpi, lambda line: print(line, flush=True))
    code = runner.run(missing)
    if runner.elsewhere:
        print(f"another sweep is running {', '.join(runner.elsewhere)}: repeat this when they are done")
    if runner.failed:
        print(
            f"{len(runner.failed)} runs failed; the same command tries them again: {', '.join(runner.failed)}"
        )
    return code or (1 if runner.elsewhere else 0)


def folder(args: argparse.Namespace) -> Path:
    """Where the runs go."""
    return args.out or Path("runs") / (args.file.stem + ("-full" if args.full else ""))


def default_jobs(points: Sequence[Point], mpi: bool) -> int:
    """As many runs at a time as there are cores for; one where they will use a GPU."""
    if torch.cuda.is_available() and any(point.args.device != "cpu" for point in points):
        return 1
    largest = max((point.threads * (point.nodes if mpi else 1) for point in points), default=1)
    return max(1, config.cores() // largest)


def whole_numbers(text: str) -> list[int]:
    """An argparse type: ``1,2,3``."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 1,2,3")
    return found


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as epochs=300")
    return key, toml.parse_value(value)
