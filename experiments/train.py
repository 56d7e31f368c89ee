"""The main job: train a model on nodes that gossip, and say how well and at what cost.

    mpirun -n 8 python -m experiments.train --algorithm dcd --compressor qsgd:bits=8 --out runs/x
    python -m experiments.train --nodes 8 ...         # the same on virtual nodes, without MPI

`train` is one node's whole run, and an ordinary torch loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

import gossip
from experiments import config, data, recipe
from experiments.agree import EXIT_CODE_STOPPED, Agreement, StopSignal
from experiments.data.batches import Batches
from experiments.meter import Meter
from experiments.progress import Progress
from experiments.report import Report
from experiments.runfolder import RunFolder
from gossip import checkpoint, cli
from gossip.errors import DivergedError


def main(argv: Sequence[str] | None = None) -> None:
    """The command; exits with the job's exit code."""
    cli.run(lambda: run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Train as the command line `argv` says, on this process's node or on all virtual ones; the exit code."""
    args = config.resolve(config.parse(argv), gossip.world())
    with StopSignal() as stop_signal:
        if args.nodes == gossip.world().size:
            return train(args, stop_signal)
        return gossip.launch(train, args.nodes, args, stop_signal)[0]


def train(args: argparse.Namespace, stop_signal: StopSignal) -> int:
    """One node's part of the run `args`. Returns the exit code; all nodes return the same."""
    world = gossip.world()
    folder = RunFolder(args.out)
    if world.rank == 0:
        folder.check(args.resume, args.overwrite)

    dataset = data.load(args.dataset, args.data_dir, world)
    batches = Batches(dataset, args.partition, args.batch_size, args.seed, world)
    total = math.ceil(args.epochs * len(batches))
    total = min(total, args.steps or total)
    model = recipe.build_model(args, dataset.classes)
    optimizer = recipe.build_optimizer(args, model)
    scheduler = recipe.build_scheduler(args, optimizer, len(batches))
    node = gossip.join(model, optimizer, **gossip.join_options(args))
    recipe.seed_everything(args.seed, world.rank)
    inputs = recipe.Inputs(args, dataset, model, node.device)
    augmentation = recipe.augmentation_stream(args.seed, world.rank)
    meter = Meter(node.stats)
    parts = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": batches,
        "meter": meter,
        "node": node,
    }

    done = 0
    if args.resume: ...
