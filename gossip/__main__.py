"""``python -m gossip COMMAND``: what to train with, on what machine, and the tools around training runs.

Each command is a module with ``add_arguments(parser)`` and ``run(args) -> int | None``, loaded when it is
the one that was typed. Those of `experiments` are only named here: the framework does not import what is
built on it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType

from gossip.cli import ArgumentParser, run
from gossip.errors import UsageError
from gossip.transport.environment import env_rank

COMMANDS = {
    "list": ("gossip.catalog", "algorithms, topologies, compressors, with their options"),
    "env": ("gossip.envreport", "versions, MPI, GPUs, cores: what a bug report needs"),
    "bench": ("gossip.bench", "how long compressors take, beside a plain copy"),
    "bytes": ("gossip.byte_table", "bytes per step, from a model's shapes alone"),
    "plan": ("gossip.plan.command", "which method, graph and compressor for a network"),
    "link": ("gossip.plan.link", "under mpirun: what plan needs to know of a network"),
    "sweep": ("experiments.sweep.command", "a grid of training runs: run what is missing of it"),
    "tune": ("experiments.sweep.tune", "find the learning rate of every method of a sweep"),
    "compare": ("experiments.compare", "finished runs side by side: mean and deviation over seeds"),
    "plot": ("experiments.plot", "training loss, test result and consensus distance of runs, as pictures"),
    "export": ("experiments.export", "the averaged model of a run, as a plain state_dict"),
}
"""Name -> module, and its line in the list of commands."""

ON_EVERY_RANK = ("link",)
"""Under mpirun the others run on rank 0 alone."""


def main() -> int:
    parser = ArgumentParser(prog="python -m gossip", description="What to train with, and tools around it.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    typed = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, (where, help) in COMMANDS.items():
        subparser = commands.add_parser(name, help=help)
        if name == typed:
            module = _load(name, where)
            subparser.description = module.__doc__
            module.add_arguments(subparser)
    args = parser.parse_args()
    if env_rank() != 0 and args.command not in ON_EVERY_RANK:
        return 0
    try:
        code = module.run(args) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads this, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _load(command: str, module: str) -> ModuleType:
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UsageError(
            f"python -m gossip {command} needs the package {package}, which this Python does not find: "
            "type it in the repository's root, or install the repository with pip install ."
        ) from None


if __name__ == "__main__":
    run(main)
