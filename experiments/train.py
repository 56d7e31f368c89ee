"""The main job: train a model on nodes that gossip, and say how well it does and at what cost.

    mpirun -n 8 python -m experiments.train --algorithm dcd --compressor qsgd:bits=8 --out runs/x
    python -m experiments.train --nodes 8 …         # the same on virtual nodes, without MPI

`train` is one node's whole run, and an ordinary torch loop.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Sequence

from torch import nn

import gossip
from experiments import config, recipe
from experiments.agree import EXIT_CODE_INTERRUPTED, EXIT_CODE_STOPPED, Agreement, StopSignal
from experiments.meter import Meter
from experiments.report import Report
from experiments.runfolder import RunFolder
from experiments.state import RunState
from experiments.workloads import workload_of
from gossip import cli
from gossip.errors import DivergedError
from gossip.transport.environment import launched


def main(argv: Sequence[str] | None = None) -> None:
    """The command; exits with the job's exit code."""
    try:
        cli.run(lambda: run(argv))
    except KeyboardInterrupt:
        if launched():
            raise  # the transport ends the other ranks too
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE_INTERRUPTED)  # virtual nodes are threads, which cannot be told to end


def run(argv: Sequence[str] | None = None) -> int:
    """Train as `argv` says: this process's node, or all virtual ones. Returns the exit code."""
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
    recipe.check(args)
    workload = workload_of(args.dataset).load(args, world)

    model = workload.build_model()
    optimizer = recipe.build_optimizer(args, model)
    method, clip_norm = recipe.clipping(args)
    node = gossip.join(model, optimizer, **gossip.join_options(args) | {"algorithm": method})
    batches = workload.batches(node)
    scheduler = recipe.build_scheduler(args, optimizer, len(batches))
    precision = workload.precision(node.device)
    recipe.seed_streams(args.seed, node.rank)

    meter = Meter(node.stats)
    state = RunState(
        folder.checkpoints,
        node,
        workload,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        batches=batches,
        meter=meter,
    )
    done = state.load() if args.resume else 0
    recipe.reschedule(optimizer, scheduler)
    total = min(math.ceil(args.epochs * len(batches)), args.steps or math.inf)
    report = Report(args, folder, node, model, workload, meter, len(batches), done, total)
    if done > total or (done == total and report.is_written()):
        report.say(f"the run in {folder.path} has made {done} steps. Raise --epochs or --steps to go on.")
        return 0
    report.begin()
    agreement = Agreement(world, stop_signal, args.timeout, getattr(node.algorithm, "every", 1))
    stream = itertools.chain.from_iterable(itertools.repeat(batches))  # epoch after epoch
    stopped = False

    try:
        for step in range(done + 1, total + 1):
            with meter.step():
                batch = next(stream)
                optimizer.zero_grad()
                with precision:
                    loss = workload.loss(model, batch)
                loss.backward()
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
                agreement.check_loss(loss.item(), step)
                meter.record(loss.item(), lr=optimizer.param_groups[0]["lr"])
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
        report.say(f"stopped as asked, after step {step}; --resume --out {folder.path} continues the run")
        return EXIT_CODE_STOPPED
    return 0


if __name__ == "__main__":
    main()
