"""What the training loop needs to know of what it trains."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from experiments import evaluate, models
from gossip.errors import UsageError
from gossip.session import Session
from gossip.shard import seed_for
from gossip.transport.base import Transport


class Loader(Protocol):
    """A rank's minibatches: each ``iter()`` is one epoch, or the rest of one that was loaded."""

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        ...

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> object: ...


class Workload(ABC):
    """A kind of data with its models, loss and test: one node's, its data in memory.

    Attributes:
        noun: what the data are, for messages.
        data_flag: the option that says where they are.
        models: by name, those that take them.
        defaults: the options that only this workload has, and ``model``, with their defaults; None if there
            is none. Without a default in the parser, so that they are known not to be given.
        measures: what `test` measures; the first is what runs are judged by.
    """

    noun: ClassVar[str]
    data_flag: ClassVar[str]
    models: ClassVar[Mapping[str, Any]]
    defaults: ClassVar[Mapping[str, Any]]
    measures: ClassVar[tuple[str, ...]]

    args: argparse.Namespace

    @classmethod
    def check(cls, args: argparse.Namespace) -> None:
        """Raise `UsageError` for what does not fit; reads no data."""
        if models.name_of(args.model) not in cls.models:
            raise UsageError(
                f"--model {args.model} cannot be trained on the {cls.noun} of --dataset {args.dataset}: "
                f"take --model {' or '.join(cls.models)}, or another --dataset (cifar10, synthetic or text)"
            )
        with torch.device("meta"):
            models.build(args.model)

    @classmethod
    @abstractmethod
    def load(cls, args: argparse.Namespace, world: Transport) -> Workload:
        """Collective: bring the data into memory. Raises `UsageError`, the same on every rank."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the data."""

    @property
    def caveat(self) -> str:
        """What must stand beside results on these data; "" if nothing must."""
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines about the data that people want to know before a run."""
        return ()

    @property
    def files(self) -> Mapping[str, str]:
        """What belongs in the run folder: texts by file name."""
        return {}

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """How many classes, or words, there are to choose from."""

    def build_model(self) -> nn.Module:
        """The model of ``--model``, with new weights that depend on the seed alone."""
        torch.manual_seed(seed_for("initial weights", self.args.seed))
        return models.build(self.args.model, self.num_classes)

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """The context to run the model in (``--amp``); it can be entered again and again."""
        return torch.autocast(device.type, torch.bfloat16) if self.args.amp == "bf16" else nullcontext()

    @abstractmethod
    def batches(self, node: Session) -> Loader:
        """This node's minibatches."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a minibatch, to run backward from."""

    def averaged_model(self, node: Session, model: nn.Module) -> nn.Module:
        """Collective: a copy of `model` with the mean of all nodes' parameters, ready to be tested."""
        return evaluate.averaged_model(node, model)

    @abstractmethod
    def test(
        self, model: nn.Module, device: torch.device, world: Transport | None = None
    ) -> dict[str, float]:
        """`measures` of `model`; leaves model and random streams as they are.

        Args:
            world: the ranks that share the work, collectively, and get the same; None for this rank alone.
        """
