"""The training script's options: flags, a TOML file of flags, and what they were resolved to."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

import gossip
from experiments import runs, toml, workloads
from experiments.data import DATASETS
from experiments.models import IMAGE_MODELS, TEXT_MODELS
from experiments.runfolder import RunFolder
from gossip import cli
from gossip.agreement import agree
from gossip.cli import fraction, non_negative_float, positive_float, positive_int
from gossip.errors import UsageError
from gossip.suggest import nearest
from gossip.transport.base import Transport

ABOUT_THE_COMMAND = ("config", "out", "resume", "overwrite", "trace")
"""Options that say what to do with a run, and are no part of it."""

MOMENTUM = 0.9
"""The default of --momentum."""

LENGTH = ("epochs", "steps")
"""Options that say how long a run goes on; its learning rates follow from them."""

INCIDENTAL = (
    "data_dir",
    "data_file",
    "threads",
    "device",
    "timeout",
    "overlap",
    "progress",
    "order",
    "eval_every",
    "log_every",
    "checkpoint_every",
)
"""Options that have no part in what is trained: where, how fast, and what is written meanwhile."""

MAY_CHANGE = (*LENGTH, *INCIDENTAL)
"""Options that a resumed run may give anew; all others would make it another run."""

MAY_DIFFER = ("config", "data_dir", "data_file", "threads", "device")
"""Options that need not be the same on all ranks: they are about a host."""


class ArgumentParser(cli.ArgumentParser):
    """Raises `UsageError` in place of ending the job: a file in which something is wrong is to be named."""

    def error(self, message: str) -> NoReturn:
        near = self._meant(message)
        raise UsageError(f"{message}; did you mean {near}?" if near else message)


def parser() -> ArgumentParser:
    """The command line of ``python -m experiments.train``."""
    parser = ArgumentParser(
        prog="python -m experiments.train",
        description="Train a model on several nodes that exchange compressed messages with their neighbours: "
        "one node per MPI rank under mpirun, or --nodes virtual ones in this process.",
    )
    add = parser.add_argument_group("run").add_argument
    add("--out", metavar="DIR", help="folder for all that the run writes (runs/DATASET-MODEL-ALGORITHM-TIME)")
    add("--config", metavar="FILE", help="TOML file whose keys are these flags; what is typed here wins")
    add("--resume", action="store_true", help="continue the run in --out from its last checkpoint")
    add("--overwrite", action="store_true", help="delete the run that is in --out and start anew")
    add("--nodes", type=positive_int, metavar="N", help="virtual nodes in this process, without mpirun (1)")
    add("--epochs", type=positive_float, default=20, metavar="N", help="passes over the data (%(default)s)")
    add("--steps", type=positive_int, metavar="N", help="stop early; the schedule is still that of --epochs")
    add("--threads", type=positive_int, metavar="N", help="torch threads per rank (1 if cores are short)")
    add("--log-every", type=positive_int, default=50, metavar="STEPS", help="a log interval (%(default)s)")
    add(
        "--eval-every",
        type=positive_float,
        default=1,
        metavar="EPOCHS",
        help="test the averaged model this often (%(default)s)",
    )
    add(
        "--checkpoint-every",
        type=positive_float,
        default=1,
        metavar="EPOCHS",
        help="write a checkpoint this often (%(default)s)",
    )

    add = parser.add_argument_group("model and data").add_argument
    add("--model", help=f"{', '.join(IMAGE_MODELS)} (resnet20); of text: {', '.join(TEXT_MODELS)}")
    add("--dataset", default="cifar10", help=f"{', '.join(DATASETS)} (%(default)s)")
    # The options of one workload only have no default here: `workloads.settle` has to know what was given.
    add("--data-dir", metavar="DIR", help="images: where CIFAR-10 is or shall be put (data)")
    add("--partition", help="images: who gets which samples: iid or dirichlet:alpha=0.1 (iid)")
    add(
        "--bn",
        choices=("recompute", "average", "local"),
        help="images: batch norm statistics of the averaged model before a test (recompute)",
    )
    add("--data-file", metavar="FILE", help="text: the file, or the training one of three, as ptb.train.txt")
    add("--bptt", type=positive_int, metavar="N", help="text: words per window, to learn through (35)")

    add = parser.add_argument_group("optimization").add_argument
    add(
        "--batch-size",
        type=positive_int,
        default=32,
        metavar="N",
        help="samples, or columns of text, per node (%(default)s)",
    )
    add("--optimizer", choices=("sgd", "adamw"), default="sgd", help="(%(default)s)")
    add("--lr", type=positive_float, default=0.1, help="learning rate (%(default)s)")
    add("--momentum", type=fraction, default=MOMENTUM, help="of sgd (%(default)s)")
    add("--nesterov", action=argparse.BooleanOptionalAction, default=False, help="Nesterov momentum, of sgd")
    add("--weight-decay", type=non_negative_float, default=1e-4, help="(%(default)s)")
    add(
        "--lr-schedule",
        default="cosine",
        metavar="SPEC",
        help="constant, cosine, or step:0.5,0.75, a tenth from each of these shares on (%(default)s)",
    )
    add(
        "--lr-warmup",
        type=non_negative_float,
        default=0.0,
        metavar="EPOCHS",
        help="raise the learning rate linearly in the beginning (%(default)s)",
    )
    add(
        "--clip-norm",
        type=positive_float,
        metavar="NORM",
        help="clip the gradient to this L2 norm; dgc does it itself, before it accumulates (no clipping)",
    )
    add("--amp", choices=("none", "bf16"), default="none", help="run the model in bfloat16 (%(default)s)")

    gossip.add_arguments(parser)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a run: the command line over ``--config`` over, with ``--resume``, the run's own.

    Raises:
        UsageError: an unknown flag or key, a value that does not fit, or a resumed run that would be another.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    known = parser().parse_args(argv)  # reports a wrong flag as such, not as one of the file's
    if known.out == "":
        raise UsageError("--out '': name a folder, such as runs/x, or leave --out out")
    files = []
    if known.resume:
        if known.out is None:
            raise UsageError("--resume continues the run in a run folder: name it with --out DIR")
        own = RunFolder(known.out).config
        if not own.exists():
            raise UsageError(f"--resume: there is no run in {known.out}; leave --resume out to start one")
        files.append(own)
    if known.config is not None:
        files.append(Path(known.config))
    args = parser().parse_args([*(token for file in files for token in flags_of(file)), *argv])
    if known.resume:
        _check_same_run(args, parser().parse_args(flags_of(files[0])), known.out)
    if args.resume and args.overwrite:
        raise UsageError("--resume continues a run and --overwrite deletes it: give one of them")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: give a whole number, 0 or more")
    if args.nesterov and not args.momentum:
        raise UsageError("--nesterov needs a --momentum above 0")
    return workloads.settle(args)


def resolve(args: argparse.Namespace, world: Transport) -> argparse.Namespace:
    """Collective: settle what depends on machine and moment: the number of nodes, threads, the run folder.

    `world` is the process's, before virtual nodes are started. Nothing is deleted or written before: the
    ranks must want the same.

    Raises:
        UsageError: ``--nodes`` and mpirun do not agree, or the options of the ranks.
    """
    if world.size > 1 and args.nodes not in (None, world.size):
        raise UsageError(
            f"mpirun started {world.size} ranks, and --nodes (or nodes in the TOML file) says {args.nodes}: "
            f"type mpirun -n {args.nodes}, or --nodes {world.size}"
        )
    agree(
        world,
        {
            "--" + name.replace("_", "-"): value
            for name, value in vars(args).items()
            if name not in MAY_DIFFER
        },
    )
    values = vars(args) | {"nodes": args.nodes or world.size, "threads": set_threads(args.threads, world)}
    if args.out is None:
        now = world.allgather(datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))[0]
        names = [spec.partition(":")[0] for spec in (args.dataset, args.model, args.algorithm)]
        values["out"] = f"runs/{'-'.join(names)}-{now}"
    return argparse.Namespace(**values)


def set_threads(threads: int | None, world: Transport) -> int:
    """Set torch's threads in this process, and return how many they are.

    By default torch starts a thread per core in every process: slow where several ranks share the cores.
    """
    available = cores()
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = 1 if world.local_size * torch.get_num_threads() > available else None
    if threads is not None:
        torch.set_num_threads(threads)
    threads = torch.get_num_threads()
    if threads > 1 and world.local_size * threads > available and world.rank == 0:
        warnings.warn(
            f"{world.local_size} ranks x {threads} threads share {available} cores; --threads 1 is faster",
            stacklevel=2,
        )
    return threads


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def due(step: int, period: float) -> bool:
    """Whether something that happens every `period` steps, a fraction perhaps, happens after `step`."""
    return step // period > (step - 1) // period


def flags_of(file: Path) -> list[str]:
    """The flags that a TOML file stands for; see `flags`."""
    return flags(toml.read(file), file)


def flags(values: Mapping[str, Any], file: Path) -> list[str]:
    """The flags that the `values` in `file` stand for, each checked: ``lr = 0.1`` is ``--lr=0.1``.

    Keys may be written with ``-`` or ``_``. Raises `UsageError` for what no flag would accept.
    """
    known = parser()
    actions = {
        option[2:]: action
        for action in known._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    keys = [key for key in actions if not key.startswith("no-") and key not in (*ABOUT_THE_COMMAND, "help")]
    found = []
    for key, value in values.items():
        name = key.replace("_", "-")
        if name in ABOUT_THE_COMMAND:
            raise UsageError(f"{file}: {key!r} is about the command, and no part of a run: type --{name}")
        if name not in keys:
            near = nearest(name, keys)
            hint = f"did you mean {near}?" if near else f"known keys: {', '.join(keys)}"
            raise UsageError(f"{file}: unknown key {key!r}; {hint}")
        flag = _flag(name, value, actions[name], file)
        try:
            known.parse_args([flag])
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from None
        found.append(flag)
    return found


def _flag(name: str, value: object, action: argparse.Action, file: Path) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise UsageError(f"{file}: {name} = {value!r}: write true or false")
    elif isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{file}: {name} = {value!r}: write a number or a string")
    return runs.flag(name, value)


def to_toml(args: argparse.Namespace) -> str:
    """`args` as a file for ``--config`` that repeats the run."""
    return toml.dumps(
        {
            name.replace("_", "-"): value
            for name, value in vars(args).items()
            if value is not None and name not in ABOUT_THE_COMMAND
        }
    )


def _check_same_run(args: argparse.Namespace, own: argparse.Namespace, out: str) -> None:
    for name, before in vars(own).items():
        now = getattr(args, name)
        if now != before and name not in (*MAY_CHANGE, *ABOUT_THE_COMMAND):
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"the run in {out} was started with {flag} {before}, not {now}: "
                f"leave {flag} out to continue it, or start another run with another --out"
            )
