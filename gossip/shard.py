"""Which samples a rank sees, batch by batch: disjoint, complete, and as many batches on every rank.

Ranks with different numbers of batches wait for each other for ever at the end of an epoch, and dropping or
repeating samples to avoid it changes the data silently. Here nothing is dropped or repeated: where the ranks'
counts would differ, the shorter ranks cut their samples into the same number of slightly smaller batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from gossip.errors import UsageError


class Position(TypedDict):
    """A place in the stream of batches: `position` batches of epoch `epoch` (from 0) were handed out."""

    epoch: int
    position: int


def seed_for(purpose: str, seed: int, *key: int) -> int:
    """A 63-bit seed of the random stream for `purpose`: the same for the same arguments, unrelated otherwise.

    `seed` and `key` are integers of at least 0; a purpose always takes the same number of them.
    """
    entropy = (zlib.crc32(purpose.encode()), seed, *key)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Cursor:
    """Where an iterable of epochs stands. `begin` starts an epoch, or goes on with one that was loaded.

    An epoch left early (``break``) counts as begun: the next `begin` starts the one after it.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.position = 0
        self._resumed = False

    def begin(self) -> Position:
        """Start the next epoch, or go on with the loaded one; returns where."""
        if self.position and not self._resumed:
            self.end()
        self._resumed = False
        return self.state_dict()

    def end(self) -> None:
        """The epoch is over."""
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> Position:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Position) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._resumed = True


def check_split(n_samples: int, size: int, batch_size: int, seed: int) -> None:
    """Raise `UsageError` when `size` ranks cannot each have a batch of the `n_samples` samples."""
    if seed < 0:
        raise UsageError(f"seed {seed}: it must be 0 or larger")
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: it must be at least 1 sample per rank")
    if n_samples < size:
        raise UsageError(
            f"{n_samples} samples for {size} ranks: every rank needs at least one sample; "
            f"use at most {n_samples} ranks or a larger data set"
        )


def steps_per_epoch(counts: Sequence[int], batch_size: int) -> int:
    """Batches per epoch, the same on every rank, for ranks that hold `counts` samples (each at least 1).

    As many as the fullest rank needs for batches of at most `batch_size`, unless a rank has fewer samples
    than that and one of its batches would be empty.
    """
    return min(-(-max(counts) // batch_size), min(counts))


def cut(indices: np.ndarray, steps: int, batch_size: int) -> list[np.ndarray]:
    """`indices` [m] as exactly `steps` non-empty batches, in order; needs ``m >= steps``.

    Batches hold `batch_size` indices, the last one the rest; where that does not give `steps` of them, their
    sizes are evened out instead and differ by at most one.
    """
    if -(-len(indices) // batch_size) == steps:
        return np.split(indices, range(batch_size, len(indices), batch_size))
    return np.array_split(indices, steps)


class ShardSampler(Sampler[list[int]]):
    """Batch sampler of one rank: each ``iter()`` is one epoch of lists of indices.

    In every epoch the ranks' indices are disjoint and cover ``range(length)``; every rank gets the same
    number of batches. With `shuffle` all indices are dealt anew in each epoch, by (`seed`, epoch).

    That holds as long as the ranks call ``iter()`` equally often (see `Shard`).

    Args:
        length: samples in the data set.
        rank, size: this rank and the number of ranks.
        batch_size: samples per batch *on this rank*.
        shuffle: deal the samples in a random order; otherwise rank r gets r, r + size, r + 2 size, ...
        seed: of the order, the same on all ranks.

    Raises:
        UsageError: fewer samples than ranks, or a batch size below 1.
    """

    def __init__(
        self, length: int, rank: int, size: int, batch_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        check_split(length, size, batch_size, seed)
        self.length, self.rank, self.size = length, rank, size
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self._steps = steps_per_epoch([len(range(r, length, size)) for r in range(size)], batch_size)
        self._cursor = Cursor()

    def __len__(self) -> int:
        return self._steps

    def batches(self, epoch: int) -> list[np.ndarray]:
        """This rank's batches of `epoch`: a pure function of the arguments. int64 arrays."""
        order = np.arange(self.length)
        if self.shuffle:
            order = np.random.default_rng(seed_for("shard", self.seed, epoch)).permutation(self.length)
        return cut(order[self.rank :: self.size], self._steps, self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        start = self._cursor.begin()
        for batch in self.batches(start["epoch"])[start["position"] :]:
            self._cursor.position += 1
            yield batch.tolist()
        self._cursor.end()

    def state_dict(self) -> Position:
        """Epoch and batches handed out; a `DataLoader` that prefetches is ahead of its loop (see `Shard`)."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Position) -> None:
        """The next ``iter()`` goes on after the batches that `state` counts."""
        self._cursor.load_state_dict(state)


class Shard:
    """This rank's share of a torch data set: a re-iterable loader, one epoch per ``iter()``.

    Args:
        dataset: a map-style torch data set (with ``len()``), the same on every rank.
        batch_size, rank, size, shuffle, seed: see `ShardSampler`.
        num_workers, loader_options: passed to `torch.utils.data.DataLoader`.

    All ranks iterate alike. Every ``iter()`` begins an epoch, also one that is only peeked into, as by
    ``next(iter(shard))``: on one rank alone it leaves that rank an epoch ahead of the others for good, and
    what the ranks then see in one epoch overlaps and misses samples. Look at ``dataset[0]`` instead, or peek
    on every rank.

    `state_dict` counts the batches that the loop has received, not those that workers have prefetched, so a
    run resumed inside an epoch goes on with the next batch.

    Raises:
        UsageError: a data set without a length, or one that `ShardSampler` refuses.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        rank: int,
        size: int,
        shuffle: bool = True,
        seed: int = 0,
        num_workers: int = 0,
        **loader_options: Any,
    ) -> None:
        try:
            length = len(dataset)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(
                f"{type(dataset).__name__} has no length: only map-style data sets can be sharded; "
                "give each rank its own loader over the samples meant for it"
            ) from None
        self.sampler = ShardSampler(length, rank, size, batch_size, shuffle, seed)
        # Its own generator: the loader draws the workers' seeds once per iter(). From the global generator,
        # that would shift the random numbers of a run resumed inside an epoch.
        self._generator = torch.Generator()
        options = {"num_workers": num_workers, "generator": self._generator, **loader_options}
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self.sampler, **options)
        self._cursor = Cursor()

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        start = self._cursor.begin()
        self.sampler.load_state_dict(start)
        self._generator.manual_seed(seed_for("loader", self.sampler.seed, self.sampler.rank, start["epoch"]))
        for batch in self._loader:
            self._cursor.position += 1
            yield batch
        self._cursor.end()

    def state_dict(self) -> Position:
        """Where the loop stands, to be saved in a checkpoint."""
        return self._cursor.state_dict()

    def load_state_dict(self, state: Position) -> None:
        """The next ``iter()`` goes on after the batches that `state` counts."""
        self._cursor.load_state_dict(state)
