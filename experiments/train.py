"""The main job: train a model on nodes that gossip, and say how well it does and at what cost.

    mpirun -n 8 python -m experiments.train --algorithm dcd --compressor qsgd:bits=8 --out runs/x
    python -m experiments.train --nodes 8 ...         # the same on virtual nodes, without MPI

`train` is one node's whole run, and an ordinary torch loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch.nn.functional as F

import gossip
from experiments import config, data, recipe
from experiments.agree import EXIT_CODE_STOPPED, Agreement, StopSignal
from experiments.data.batches import Batches
from experiments.meter import Meter
from experiments.report import Report
from experiments.runfolder import RunFolder
from experiments.state import RunState
from gossip import cli
from gossip.errors import DivergedError


def main(argv: Sequence[str] | None = None) -> None:
    """The command; exits with the job's exit code."""
    cli.run(lambda: run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Train as the command line `argv` says: this process's node, or all virtual ones. Returns the exit code."""
    args = config.resolve(config.parse(argv), gossip.world())
    with StopSignal() as stop_signal:
        if args.nodes == gossip.world().size:
            return train(args, stop_signal)
        return gossip.launch(train, args.nodes, args, stop_signal)[0]


def train(args: argparse.Namespace, stop_signal: StopSignal) -> int:
    """One node's part of the run. Returns the exit code, the same on all nodes."""
    world = gossip.world()
    folder = RunFolder(args.out)
    folder.check(args.resume, args.overwrite)
    dataset = data.load(args.dataset, args.data_dir, world)
    batches = Batches(dataset, args.partition, args.batch_size, args.seed, world)
    total = min(math.ceil(args.epochs * len(batches)), args.steps or math.inf)

    model = recipe.build_model(args, dataset.classes)
    optimizer = recipe.build_optimizer(args, model)
    scheduler = recipe.build_scheduler(args, optimizer, len(batches))
    node = gossip.join(model, optimizer, **gossip.join_options(args))

    inputs = recipe.Inputs(args, dataset, model, node.device)
    augmentation = recipe.seed_streams(args.seed, node.rank)
    meter = Meter(node.stats)
    state = RunState(
        folder.checkpoints,
        node,
        {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batches": batches, "meter": meter},
        {"augmentation": augmentation},
    )
    done = state.load() if args.resume else 0
    report = Report(args, folder, node, model, dataset, inputs.forward, meter, len(batches), done, total)
    if done >= total and folder.summary() is not None:
        report.say(f"the run in {folder.path} is finished: {done} steps. More --epochs or --steps continue it.")
        return 0
    report.begin()
    agreement = Agreement(world, stop_signal, args.timeout, getattr(node.algorithm, "every", 1))
    stopped = False

    try:
        for step in range(done + 1, total + 1):
            with meter.step():
                x, y = next(batches)
                x, y = inputs.augmented(x, augmentation), y.to(node.device)
                optimizer.zero_grad()
                with inputs.precision():
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                agreement.check_loss(loss.item(), step)
                meter.record(loss.item(), scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            report.step(step)

            stopped = agreement.stops_after(step)
            last = step == total
            tests = last or config.due(step, args.eval_every * len(batches))
            saves = last or stopped or config.due(step, args.checkpoint_every * len(batches))
            if tests or saves or step % args.log_every == 0:
                agreement.meet(step)
                report.interval(step, tests)
            if saves:
                state.save(step)
            if stopped:
                break
        if not stopped:
            report.finish()
    except DivergedError:
        agreement.record_divergence(report.diverged)
        raise
    node.finish()
    if stopped:
        report.say(f"asked to stop: checkpoint of step {step} written; --resume --out {folder.path} continues")
        return EXIT_CODE_STOPPED
    return 0


if __name__ == "__main__":
    main()
