"""Text: a recurrent language model that reads it window after window, and its perplexity."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import data
from experiments.data import Corpus
from experiments.data.windows import NO_TARGET, Windows, columns
from experiments.evaluate import Score, testing
from experiments.models import TEXT_MODELS
from experiments.workloads.base import Workload
from gossip.errors import UsageError
from gossip.session import Session
from gossip.transport.base import Transport

TEST_COLUMNS = 16
"""A test reads its stream in so many columns, whatever the batch size and the number of ranks."""

TEST_WINDOW = 50
"""Positions at a time in a test; no matter for its result, as the model's memory is handed on."""


class TextWorkload(Workload):
    """A `Corpus`, of which every node reads a contiguous part."""

    noun = "text"
    data_flag = "--data-file"
    models = TEXT_MODELS
    defaults: ClassVar[Mapping[str, Any]] = {"model": "lstm", "data_file": None, "bptt": 35}
    measures = ("test_perplexity", "test_loss", "valid_perplexity")

    def __init__(self, args: argparse.Namespace, corpus: Corpus) -> None:
        self.args, self._corpus = args, corpus

    @classmethod
    def check(cls, args: argparse.Namespace) -> None:
        super().check(args)
        if args.data_file is None:
            raise UsageError(
                f"--dataset {args.dataset} needs --data-file FILE: a text file, or ptb.train.txt with "
                "ptb.valid.txt and ptb.test.txt beside it"
            )

    @classmethod
    def load(cls, args: argparse.Namespace, world: Transport) -> TextWorkload:
        return cls(args, data.load_text(args.dataset, args.data_file, world))

    @property
    def digest(self) -> str:
        return self._corpus.digest

    @property
    def notes(self) -> tuple[str, ...]:
        return (str(self._corpus),)

    @property
    def files(self) -> dict[str, str]:
        """The vocabulary, a word per line: the line's number, from 0, is the word's id."""
        return {"vocab.txt": "".join(f"{word}\n" for word in self._corpus.vocabulary)}

    @property
    def num_classes(self) -> int:
        return len(self._corpus.vocabulary)

    def batches(self, node: Session) -> Windows:
        self._windows = Windows(
            self._corpus.train,
            node.rank,
            node.size,
            self.args.batch_size,
            self.args.bptt,
            device=node.device,
        )
        return self._windows

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The memory goes on to the next window; gradients do not flow back into it."""
        x, y = batch
        logits, memory = model(x, self._windows.memory)
        self._windows.memory = tuple(part.detach() for part in memory)
        return cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=NO_TARGET)

    def test(
        self, model: nn.Module, device: torch.device, world: Transport | None = None
    ) -> dict[str, float]:
        test, valid = (
            self._score(model, tokens, device, world) for tokens in (self._corpus.test, self._corpus.valid)
        )
        return {
            "test_perplexity": test.perplexity,
            "test_loss": test.loss,
            "valid_perplexity": valid.perplexity,
        }

    def _score(
        self, model: nn.Module, tokens: Tensor, device: torch.device, world: Transport | None
    ) -> Score:
        """Every pair of the stream once. Ranks that share the work read whole columns each."""
        x, y = columns(tokens, TEST_COLUMNS)
        if world is not None:
            x, y = (t[:, world.rank :: world.size] for t in (x, y))
        score, memory = Score(), None
        if x.numel():
            context = self.precision(device)
            with testing(model):
                for window, targets in zip(x.split(TEST_WINDOW), y.split(TEST_WINDOW), strict=True):
                    with context:
                        logits, memory = model(window.to(device), memory)
                    score += Score.of(logits.flatten(0, 1), targets.flatten())
        return score if world is None else score.together(world)
