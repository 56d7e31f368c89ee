"""Minibatches of a rank's part of an in-memory data set, augmented and normalised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from experiments.data.augment import augment, normalize
from gossip.shard import Cursor, Position, check_split, cut, seed_for, steps_per_epoch


class Batches:
    """Minibatches ``(x, y)`` of the samples ``parts[rank]``; each ``iter()`` is one epoch.

    x is float32 [b, 3, s, s], normalised; y is int64 [b]. A rank's samples are reshuffled in every epoch by
    (seed, rank, epoch), and batch number s is augmented by (seed, rank, epoch, s): epoch and position are all
    there is to restore. Every rank has the same number of batches, none of them empty, and each sample of a
    part comes once per epoch (see `gossip.shard`).

    Args:
        x: uint8 [N, 3, s, s], all samples; on `device` already, or moved there batch by batch.
        y: int64 [N].
        parts: the sample indices of every rank, as `experiments.data.partition.split` gives them.
        rank: whose batches these are.
        batch_size: samples per batch on this rank.
        mean, std: float32 [3], for `normalize`.
        seed: of order and augmentation, the same on all ranks.
        augmented: crop and mirror the images at random.
        device: where the batches are wanted.

    Raises:
        UsageError: a part without samples, a batch size below 1, a negative seed.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        parts: Sequence[np.ndarray],
        rank: int,
        batch_size: int,
        mean: Tensor,
        std: Tensor,
        *,
        seed: int = 0,
        augmented: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        counts = [len(part) for part in parts]
        check_split(min(counts) * len(parts), len(parts), batch_size, seed)
        self.x, self.y, self.part, self.rank = x, y, np.asarray(parts[rank]), rank
        self.batch_size, self.seed, self.augmented, self.device = batch_size, seed, augmented, device
        self.mean, self.std = mean.to(device), std.to(device)
        self._steps = steps_per_epoch(counts, batch_size)
        self._cursor = Cursor()
        self._generator = torch.Generator()

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self._steps

    def indices(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of this rank's batches in `epoch`: a pure function of the arguments."""
        rng = np.random.default_rng(seed_for("batches", self.seed, self.rank, epoch))
        return cut(rng.permutation(self.part), self._steps, self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = self._cursor.begin()
        for indices in self.indices(start["epoch"])[start["position"] :]:
            picked = torch.from_numpy(indices)
            x, y = (t[picked.to(t.device)].to(self.device) for t in (self.x, self.y))
            if self.augmented:
                key = (self.rank, self._cursor.epoch, self._cursor.position)
                x = augment(x, self._generator.manual_seed(seed_for("augment", self.seed, *key)))
            self._cursor.position += 1
            yield normalize(x, self.mean, self.std), y
        self._cursor.end()

    def state_dict(self) -> Position:
        """Epoch and batches handed out, to be saved in a checkpoint."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Position) -> None:
        """The next ``iter()`` goes on after the batches that `state` counts, bit for bit."""
        self._cursor.load_state_dict(state)
