"""From options to torch objects: model, optimizer, learning rate, precision and seeds."""

from __future__ import annotations

import argparse
import random
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from experiments import models, schedules
from experiments.data import Dataset
from experiments.data.augment import augment, normalize
from gossip.shard import stream_seed

MODEL_STREAM, TRAINING_STREAM, AUGMENT_STREAM = range(3)
"""Random streams that a run derives from its seed."""


def build_model(args: argparse.Namespace, classes: int) -> nn.Module:
    """The model of ``--model``, channels last if it has convolutions: a quarter faster on a CPU."""
    torch.manual_seed(stream_seed(args.seed, MODEL_STREAM))
    model = models.build(args.model, classes)
    return model.to(memory_format=torch.channels_last) if _has_convolutions(model) else model


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
    """``--lr-schedule`` and ``--lr-warmup``; both count epochs of the data, so they mean the same for any n."""
    factor = schedules.lr_factor(args.lr_schedule, args.epochs, args.lr_warmup)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / steps_per_epoch))


def seed_streams(seed: int, rank: int) -> torch.Generator:
    """Seed this rank's global random streams (dropout and the like), and return a generator for augmentation."""
    value = stream_seed(seed, TRAINING_STREAM, rank)
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
    return torch.Generator().manual_seed(stream_seed(seed, AUGMENT_STREAM, rank))


class Inputs:
    """Takes a data set's uint8 images to the model: augmented or not, normalised, in the model's layout."""

    def __init__(self, args: argparse.Namespace, dataset: Dataset, model: nn.Module, device: torch.device) -> None:
        self._mean, self._std, self._device = dataset.mean.to(device), dataset.std.to(device), device
        self._layout = torch.channels_last if _has_convolutions(model) else torch.contiguous_format
        self._bf16 = args.amp == "bf16"

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 [b, c, h, w] -> float32 [b, c, h, w] on the model's device, cropped and flipped at random."""
        return self._normalized(augment(x.to(self._device), generator))

    def precision(self) -> AbstractContextManager[object]:
        """The context to run the model in."""
        return torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else nullcontext()

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        """uint8 [b, c, h, w], not augmented -> logits [b, classes], in the precision of the training."""
        with self.precision():
            return model(self._normalized(x.to(self._device)))

    def _normalized(self, x: Tensor) -> Tensor:
        return normalize(x, self._mean, self._std).contiguous(memory_format=self._layout)


def _has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())
