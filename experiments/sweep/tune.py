"""Find the learning rate of every method in a sweep, from a stated grid, by the training loss at the end.

    python -m gossip tune experiments/paper/tang-fig2a.toml --lr 0.05,0.1,0.2 --set data-dir=data

Like Tang et al. 2018, who tuned each method on its training curve: the test data have no say. Writes
tuned.toml into the folder, a sweep file with the chosen rates, and in its [tuned] table all that was tried.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments import toml
from experiments.runs import Run
from experiments.sweep.command import add_common_arguments, chosen, folder, run_points
from experiments.sweep.grid import Point, SweepFile
from gossip import files
from gossip.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """What was tried for one method.

    Attributes:
        name: the method, as in run names, without learning rate and seed.
        settings: of its runs, without learning rate and seed.
        losses: final training losses by learning rate and seed; inf where a run diverged.
    """

    name: str
    settings: Mapping[str, Any]
    losses: dict[float, dict[int, float]]

    @property
    def best(self) -> float | None:
        """The learning rate of the lowest mean loss; None if none is without a seed that diverged."""
        means = {lr: statistics.fmean(losses.values()) for lr, losses in self.losses.items()}
        lr = min(means, key=means.__getitem__)
        return lr if means[lr] < math.inf else None

    @property
    def at_the_edge(self) -> bool:
        """Whether the best rate is the grid's smallest or largest: a wider grid might hold a better one."""
        return len(self.losses) > 1 and self.best in (min(self.losses), max(self.losses))

    @property
    def tried(self) -> list[str]:
        """``0.1: 0.5312``, the mean over seeds, for every rate."""
        return [f"{lr:g}: {_show(list(losses.values()))}" for lr, losses in sorted(self.losses.items())]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m gossip tune``."""
    add_common_arguments(parser)
    parser.add_argument(
        "--lr", type=_rates, default=None, metavar="0.05,0.1", help="the grid (lr of the file's [tune])"
    )


def run(args: argparse.Namespace) -> int:
    """The command. Returns its exit code."""
    file = SweepFile.read(args.file, args.full)
    rates = args.lr or file.tune.get("lr")
    if not isinstance(rates, list) or not rates:
        raise UsageError(
            f"{args.file} lists no learning rates: type --lr 0.05,0.1, or add [tune] lr = [0.05, 0.1]"
        )
    if "lr" in dict(args.set):
        raise UsageError("--set lr=… leaves nothing to tune: give the rates to try as --lr 0.05,0.1,0.2")
    out = args.out or folder(args).with_name(folder(args).name + "-tune")
    points = chosen(with_rates(file, rates), args)
    code = run_points(points, out, args)
    if code:
        return code
    choices = choose(points, out)
    print("\n".join(lines(choices)))
    if all(choice.best is None for choice in choices):
        raise UsageError("runs diverged at every rate: give smaller ones to try, --lr 0.001,0.01")
    path = out / "tuned.toml"
    files.replace_text(path, tuned_file(choices, file, args.file))
    tuned = out.with_name(f"{out.name.removesuffix('-tune')}-tuned")  # tuned.toml is all these files' name
    words = ["python", "-m", "gossip", "sweep", str(path), "--out", str(tuned), *(["--mpi"] * args.mpi)]
    print(shlex.join(words))
    return 0


def with_rates(file: SweepFile, rates: Sequence[float]) -> SweepFile:
    """`file` with every method at each of the `rates`."""
    return replace(file, blocks=tuple({**block, "lr": list(rates)} for block in file.blocks))


def choose(points: Iterable[Point], out: Path) -> list[Choice]:
    """What the finished runs of `points` in `out` say."""
    choices: dict[str, Choice] = {}
    for point in points:
        name = point.name.removesuffix(f"-seed{point.args.seed}").replace(f"-lr{point.settings['lr']}", "")
        settings = {key: value for key, value in point.settings.items() if key not in ("lr", "seed")}
        losses = choices.setdefault(name, Choice(name, settings, {})).losses.setdefault(point.args.lr, {})
        losses[point.args.seed] = _loss(Run.read(out / point.name))
    return list(choices.values())


def lines(chosen: Iterable[Choice]) -> Iterable[str]:
    """The table for the terminal."""
    for choice in chosen:
        best = "diverged at every lr" if choice.best is None else f"lr {choice.best:g}"
        edge = " (at the edge of the grid: try rates beyond it)" if choice.at_the_edge else ""
        yield f"{choice.name}: {best}{edge}    final training loss by lr: {', '.join(choice.tried)}"


def tuned_file(chosen: Iterable[Choice], file: SweepFile, path: Path) -> str:
    """A sweep file with the chosen learning rates, what else `file` has, and what was tried."""
    tried = list(chosen)
    chosen = [choice for choice in tried if choice.best is not None]
    shared = dict(chosen[0].settings)
    for choice in chosen:
        shared = {k: v for k, v in shared.items() if k in choice.settings and choice.settings[k] == v}
    seeds = {seed for choice in tried for losses in choice.losses.values() for seed in losses}
    shared["seed"] = file.base.get("seed", sorted(seeds))
    parts = [f"# Written by python -m gossip tune {path}\n", toml.dumps(shared)]
    for choice in chosen:
        own = {key: value for key, value in choice.settings.items() if key not in shared}
        parts.append(f"\n[[runs]]\n{toml.dumps({**own, 'lr': choice.best})}")
    if file.about:
        parts.append(f"\n[about]\n{toml.dumps(file.about)}")
    if file.full:
        parts.append(_full(file, shared))
    criterion = {"criterion": "lowest training loss over the last epoch, mean over nodes and seeds"}
    record = {f'"{choice.name}"': choice.tried for choice in tried}
    parts.append(f"\n[tuned]\n{toml.dumps({**criterion, **record})}")
    return "".join(parts)


def _full(file: SweepFile, shared: Mapping[str, Any]) -> str:
    """The [full] of `file` for a tuned file whose blocks share the settings `shared`."""
    settings = {key: value for key, value in file.full.items() if key != "runs"}
    blocks = file.full.get("runs", [])
    if blocks:
        # They replace the tuned blocks, and nobody has tuned them: they keep the rate that `file` gives them,
        # and its other settings that are only in the tuned blocks now.
        settings = {key: value for key, value in file.base.items() if key not in shared} | settings
        remark = "its runs have not been tuned"
    else:
        # The tuned blocks run with these settings, at the rates chosen for them: one here would do nothing.
        settings.pop("lr", None)
        remark = "the rates above were chosen without these settings"
    parts = [f"\n[full]    # {remark}\n{toml.dumps(settings)}"]
    return "".join([*parts, *(f"\n[[full.runs]]\n{toml.dumps(block)}" for block in blocks)])


def _loss(run: Run) -> float:
    assert run.summary is not None, "a sweep that has ended well"
    loss = run.summary.get("train_loss")
    return math.inf if run.diverged or loss is None or not math.isfinite(loss) else float(loss)


def _show(losses: Sequence[float]) -> str:
    diverged = losses.count(math.inf)
    if not diverged:
        return f"{statistics.fmean(losses):.4f}"
    return "diverged" if diverged == len(losses) else f"{diverged} of {len(losses)} diverged"


def _rates(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < math.inf for rate in found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of learning rates such as 0.05,0.1,0.2")
    return found
