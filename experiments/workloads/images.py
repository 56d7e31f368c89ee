"""Images with labels: a classifier, its accuracy, and batch normalisation's statistics."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import data, evaluate
from experiments.data import Dataset, partition
from experiments.data.augment import normalize
from experiments.data.batches import Batches
from experiments.models import IMAGE_MODELS
from experiments.workloads.base import Workload
from gossip.session import Session
from gossip.transport.base import Transport


class Images(Workload):
    """A `Dataset`, dealt out to the nodes by ``--partition``, augmented."""

    noun = "images"
    data_flag = "--data-dir"
    models = IMAGE_MODELS
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": "resnet20",
        "data_dir": "data",
        "partition": "iid",
        "bn": "recompute",
    }
    measures = ("test_accuracy", "test_loss")

    def __init__(self, args: argparse.Namespace, dataset: Dataset) -> None:
        self.args, self._dataset = args, dataset

    @classmethod
    def check(cls, args: argparse.Namespace) -> None:
        super().check(args)
        partition.split(np.zeros(args.nodes), args.nodes, args.partition, args.seed)

    @classmethod
    def load(cls, args: argparse.Namespace, world: Transport) -> Images:
        return cls(args, data.load(args.dataset, args.data_dir, world))

    @property
    def digest(self) -> str:
        return self._dataset.digest

    @property
    def caveat(self) -> str:
        return self._dataset.caveat

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"data: {self.caveat}",) if self.caveat else ()

    @property
    def num_classes(self) -> int:
        return len(self._dataset.classes)

    def build_model(self) -> nn.Module:
        """With weights in channels-last order: a quarter faster on a CPU."""
        return super().build_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def batches(self, node: Session) -> Batches:
        args, dataset = self.args, self._dataset
        return Batches(
            dataset.train_x,
            dataset.train_y,
            partition.split(dataset.train_y, node.size, args.partition, args.seed),
            node.rank,
            args.batch_size,
            dataset.mean,
            dataset.std,
            seed=args.seed,
            device=node.device,
        )

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return cross_entropy(model(x), y)

    def averaged_model(self, node: Session, model: nn.Module) -> nn.Module:
        """With the statistics that ``--bn`` asks for."""
        forward = self._forward(node.device)
        return evaluate.averaged_image_model(node, model, self.args.bn, self._dataset.train_x, forward)

    def recompute_statistics(self, model: nn.Module, device: torch.device, world: Transport) -> None:
        """Collective: give `model` the batch normalisation statistics that ``--bn recompute`` gives."""
        evaluate.recompute_augmented(model, self._dataset.train_x, self._forward(device), world)

    def test(
        self, model: nn.Module, device: torch.device, world: Transport | None = None
    ) -> dict[str, float]:
        images, labels, forward = self._dataset.test_x, self._dataset.test_y, self._forward(device)
        if world is None:
            score = evaluate.score(model, images, labels, forward)
        else:
            score = evaluate.score_together(model, images, labels, forward, world)
        return {"test_accuracy": score.accuracy, "test_loss": score.loss}

    def _forward(self, device: torch.device) -> evaluate.Forward:
        """Images as the data set has them -> logits, in the precision of the training, not augmented."""
        context = self.precision(device)

        def forward(model: nn.Module, x: Tensor) -> Tensor:
            with context:
                return model(normalize(x.to(device), self._dataset.mean, self._dataset.std))

        return forward
