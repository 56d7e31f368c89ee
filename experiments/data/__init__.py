"""Data sets by name, and loading them on all ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from experiments.data.cifar10 import CIFAR10
from experiments.data.dataset import Dataset, Source
from experiments.data.synthetic import Synthetic
from gossip.errors import UsageError
from gossip.spec import Kind
from gossip.transport.base import Transport

__all__ = ["DATASETS", "Dataset", "load"]

DATASETS: Mapping[str, Callable[..., Source]] = {"cifar10": CIFAR10, "synthetic": Synthetic}

T = TypeVar("T")

_KIND = Kind("data set", "", "--dataset", DATASETS)
_in_memory: WeakValueDictionary[tuple[Source, Path], Dataset] = WeakValueDictionary()


def load(name: str, data_dir: str, world: Transport | None = None) -> Dataset:
    """The data set `name`, such as ``cifar10`` or ``synthetic:train=4096,seed=1``. Collective over `world`.

    One rank of every host fetches what is missing while the others wait. Virtual nodes of one process
    share one copy.

    Args:
        name: a key of `DATASETS`, with options.
        data_dir: where files are looked for, and downloaded to. Not used by ``synthetic``.
        world: the ranks that load together; None for one process on its own.

    Raises:
        UsageError: no such data set or option, files that cannot be had or are damaged. Every rank raises the
            same error, whichever rank met it.
    """
    source: Source = _KIND.make(name)

    def prepare() -> None:
        if world is None or world.local_rank == 0:
            source.prepare(data_dir)

    key = (source, Path(data_dir).expanduser().resolve())

    def read() -> Dataset:
        dataset = _in_memory.get(key)
        if dataset is None:
            dataset = _in_memory[key] = source.load(data_dir)
        return dataset

    _together(world, prepare)
    return _together(world, read)


def _together(world: Transport | None, action: Callable[[], T]) -> T:
    """Run `action` on every rank; where it fails on some, every rank raises the first one's `UsageError`."""
    if world is None:
        return action()
    problem, cause = "", None
    try:
        result = action()
    except UsageError as error:
        problem, cause = str(error), error
    told = next(filter(None, world.allgather(problem)), None)
    if told is not None:
        raise UsageError(told) from cause
    return result
