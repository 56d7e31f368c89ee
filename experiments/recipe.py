"""From options to torch objects: method, optimizer, learning rate and seeds."""

from __future__ import annotations

import argparse
import dataclasses
import random

import numpy as np
import torch
from torch import nn

from experiments import config, schedules, workloads
from gossip import spec
from gossip.algorithms import DGC, Algorithm
from gossip.errors import UsageError
from gossip.fit import applies_lazily
from gossip.shard import seed_for


def check(args: argparse.Namespace) -> None:
    """Raise `UsageError` for a name or an option that does not exist: at once, not when the data is there."""
    method, clip_norm = clipping(args)
    if clip_norm is not None and applies_lazily(method, args.order, args.overlap):
        raise UsageError(
            f"--clip-norm {clip_norm:g}: with {method.name} and overlap the gradients are still on their way "
            "when the loop would clip them. Add --no-overlap, or take "
            f"{'--order fifo' if args.order == 'priority' else 'another method, such as allreduce'}."
        )
    spec.make_codec(method.default_compressor if args.compressor is None else args.compressor)
    spec.make_topology(args.topology, args.nodes, args.weights)
    if args.optimizer == "adamw" and (args.nesterov or args.momentum != config.MOMENTUM):
        raise UsageError("--momentum and --nesterov are of --optimizer sgd; leave them out with adamw")
    schedules.lr_factor(args.lr_schedule, args.epochs, args.lr_warmup)
    workloads.workload_of(args.dataset).check(args)


def clipping(args: argparse.Namespace) -> tuple[Algorithm, float | None]:
    """The method of ``--algorithm``, and the norm to which the training loop clips (None: it does not).

    dgc is given ``--clip-norm`` as its own `clip`: it has to clip before it accumulates.

    Raises:
        UsageError: clipping is asked for in both ways.
    """
    method = spec.make_algorithm(args.algorithm)
    if args.clip_norm is None or not isinstance(method, DGC):
        return method, args.clip_norm
    if method.clip is not None:
        raise UsageError(
            f"--clip-norm {args.clip_norm:g} and the clip in --algorithm {args.algorithm} are the same "
            "thing: leave one of the two out"
        )
    return dataclasses.replace(method, clip=args.clip_norm), None


def build_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of ``--optimizer``, with weight decay on all parameters (as in the papers' recipes)."""
    if args.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        lr=args.lr,
        momentum=args.momentum,
        nesterov=args.nesterov,
        weight_decay=args.weight_decay,
    )


def build_scheduler(
    args: argparse.Namespace, optimizer: torch.optim.Optimizer, steps_per_epoch: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """``--lr-schedule`` and ``--lr-warmup``, in epochs of the data: they mean the same for any n."""
    factor = schedules.lr_factor(args.lr_schedule, args.epochs, args.lr_warmup)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / steps_per_epoch))


def reschedule(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LambdaLR) -> None:
    """Set the rate of the step that comes next: another ``--epochs`` makes it another than was saved."""
    rates = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, (lr, factor) in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = lr * factor(scheduler.last_epoch)


def seed_streams(seed: int, rank: int) -> None:
    """Give this rank's global random streams, for dropout and the like, a seed of their own."""
    value = seed_for("training", seed, rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
