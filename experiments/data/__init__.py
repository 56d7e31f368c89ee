"""Data sets by name, and loading them on all ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from experiments.data.cifar10 import CIFAR10
from experiments.data.dataset import Data, Dataset, Source
from experiments.data.synthetic import Synthetic
from experiments.data.text import Corpus, Text
from gossip.errors import UsageError
from gossip.spec import Kind
from gossip.transport.base import Transport

__all__ = ["DATASETS", "Corpus", "Dataset", "load", "load_text", "name_of"]

DATASETS: Mapping[str, Callable[..., Source[Any]]] = {
    "cifar10": CIFAR10,
    "synthetic": Synthetic,
    "text": Text,
}

T = TypeVar("T")
D = TypeVar("D", bound=Data)

_KIND = Kind("data set", "", "--dataset", DATASETS)
_in_memory: WeakValueDictionary[tuple[Source[Any], Path], Any] = WeakValueDictionary()


def name_of(spec: str) -> str:
    """``text`` of ``text:vocab=5000``. Raises `UsageError`: no such data set, option or value."""
    _KIND.make(spec)
    return _KIND.select(spec)[0]


def load(name: str, data_dir: str, world: Transport | None = None) -> Dataset:
    """The images `name`, such as ``cifar10`` or ``synthetic:train=4096,seed=1``. Collective over `world`.

    One rank of every host fetches what is missing while the others wait. Virtual nodes of one process
    share one copy.

    Args:
        name: a set of images among `DATASETS`, with options.
        data_dir: where files are looked for, and downloaded to. Not used by ``synthetic``.
        world: the ranks that load together; None for one process on its own.

    Raises:
        UsageError: no such data set or option, files that cannot be had or are damaged, or ranks that have
            read different ones. Every rank raises the same error, whichever rank met it.
    """
    images: Source[Dataset] = _KIND.make(name)
    return _load(images, "--data-dir", data_dir, world)


def load_text(name: str, file: str, world: Transport | None = None) -> Corpus:
    """The text in `file`, read as `name` says: ``text`` or ``text:vocab=5000``. Collective over `world`.

    Raises:
        UsageError: no such option, a file that cannot be used, or ranks that have read different texts. Every
            rank raises the same error.
    """
    text: Source[Corpus] = _KIND.make(name)
    return _load(text, "--data-file", file, world)


def _load(source: Source[D], flag: str, location: str, world: Transport | None) -> D:
    def prepare() -> None:
        if world is None or world.local_rank == 0:
            source.prepare(location)

    key = (source, Path(location).expanduser().resolve())

    def read() -> D:
        found: D | None = _in_memory.get(key)
        if found is None:
            found = _in_memory[key] = source.load(location)
        return found

    _together(world, prepare)
    found = _together(world, read)
    digests = world.allgather(found.digest) if world is not None else []
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise UsageError(
            f"{flag} {location}: the data on rank {', '.join(others)} are not those of rank 0. "
            "Put the same files on every host."
        )
    return found


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
