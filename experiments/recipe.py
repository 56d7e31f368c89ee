"""From options to torch objects: model, data, optimizer, learning rate, precision and seeds."""

from __future__ import annotations

import argparse
import random
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from experiments import config, models, schedules
from experiments.data import Dataset, partition
from experiments.data.augment import normalize
from experiments.data.batches import Batches
from experiments.evaluate import Forward
from gossip import spec
from gossip.errors import UsageError
from gossip.session import Session
from gossip.shard import seed_for


def check(args: argparse.Namespace) -> None:
    """Raise `UsageError` for a name or an option that does not exist: at once, not when the data is there."""
    method = spec.make_algorithm(args.algorithm)
    spec.make_codec(args.compressor or method.default_compressor)
    spec.make_topology(args.topology, args.nodes, args.weights)
    if args.optimizer == "adamw" and (args.nesterov or args.momentum != config.MOMENTUM):
        raise UsageError("--momentum and --nesterov are of --optimizer sgd; leave them out with adamw")
    schedules.lr_factor(args.lr_schedule, args.epochs, args.lr_warmup)
    partition.split(np.zeros(args.nodes), args.nodes, args.partition, args.seed)
    with torch.device("meta"):
        models.build(args.model)


def build_model(args: argparse.Namespace, classes: int) -> nn.Module:
    """The model of ``--model``, with weights in channels-last order: a quarter faster on a CPU."""
    torch.manual_seed(seed_for("initial weights", args.seed))
    return models.build(args.model, classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


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


def build_batches(args: argparse.Namespace, dataset: Dataset, node: Session) -> Batches:
    """This node's minibatches, of its part (``--partition``) of the training images."""
    parts = partition.split(dataset.train_y, node.size, args.partition, args.seed)
    return Batches(
        dataset.train_x,
        dataset.train_y,
        parts,
        node.rank,
        args.batch_size,
        dataset.mean,
        dataset.std,
        seed=args.seed,
        device=node.device,
    )


def precision(args: argparse.Namespace, device: torch.device) -> AbstractContextManager[object]:
    """The context to run the model in (``--amp``); it can be entered again and again."""
    return torch.autocast(device.type, torch.bfloat16) if args.amp == "bf16" else nullcontext()


def forward_pass(args: argparse.Namespace, dataset: Dataset, device: torch.device) -> Forward:
    """Images as the data set has them -> logits, in the precision of the training, not augmented."""
    context = precision(args, device)

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        with context:
            return model(normalize(x.to(device), dataset.mean, dataset.std))

    return forward


def seed_streams(seed: int, rank: int) -> None:
    """Give this rank's global random streams, for dropout and the like, a seed of their own."""
    value = seed_for("training", seed, rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
