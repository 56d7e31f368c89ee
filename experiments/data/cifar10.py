"""CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images, from the archive or its folder."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.data import safe_pickle
from experiments.data.dataset import Dataset, channel_statistics
from experiments.data.download import DownloadError, download
from gossip.errors import UsageError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
TEST = "test_batch"
PUBLISHED = {  # the batches' MD5
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    TEST: "40351d587109b95175f43aff81a1287e",
}
TRAIN = tuple(name for name in PUBLISHED if name != TEST)
SIDE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class CIFAR10:
    """Photographs of ten kinds of animals and vehicles; downloaded (170 MB) when absent."""

    size: int = field(default=SIDE, metadata={"help": "side of the images: 32, or reduced to 16 or 8"})
    test: int = field(default=10_000, metadata={"help": "how many of the test images are used"})

    def __post_init__(self) -> None:
        if self.size not in (32, 16, 8):
            raise ValueError(f"size={self.size}: the images are 32 pixels wide; 32, 16 and 8 fit")
        if not 1 <= self.test <= 10_000:
            raise ValueError(f"test={self.test}: there are 10000 test images; 1 to 10000 fit")

    def prepare(self, data_dir: str) -> None:
        """Download the archive into `data_dir` unless the data is there, and unpack it."""
        root = Path(data_dir).expanduser()
        if root.exists() and not (root.is_dir() or root.is_file()):
            raise UsageError(f"--data-dir {data_dir} is neither a folder nor CIFAR-10's archive; name one")
        source = find(data_dir)
        if source is None:
            source = _downloaded(Path(data_dir).expanduser())
        if source.is_file():
            _unpack(source)

    def load(self, data_dir: str) -> Dataset:
        """Read the batches: the folder if it is complete, else the archive."""
        source = find(data_dir)
        if source is None:
            raise UsageError(
                f"CIFAR-10 is not in {Path(data_dir).expanduser().resolve()} on this host; "
                "hosts that share no file system need the data each (--data-dir)"
            )
        x = y = None
        missing, other = {*PUBLISHED}, list[str]()
        for name, data in _files(source):
            if hashlib.md5(data, usedforsecurity=False).hexdigest() != PUBLISHED[name]:
                other.append(name)
            images, labels = _batch(data, f"{name} in {source}", source)
            missing.remove(name)
            if name == TEST:
                test_x, test_y = images.copy(), labels
                continue
            if x is None or y is None:  # all training batches are equally large: no second copy is needed
                x = np.empty((len(TRAIN), *images.shape), np.uint8)
                y = np.empty((len(TRAIN), len(labels)), np.int64)
            if images.shape != x.shape[1:]:
                problem = f"it has {len(images)} images, other batches {x.shape[1]}"
                raise _damaged(f"{name} in {source}", problem, source)
            x[TRAIN.index(name)] = images
            y[TRAIN.index(name)] = labels
        if missing or x is None or y is None:
            raise _damaged(str(source), f"it lacks {', '.join(sorted(missing))}", source)
        train, test = (
            (reduce(torch.from_numpy(images), self.size), torch.from_numpy(labels))
            for images, labels in (
                (x.reshape(-1, 3, SIDE, SIDE), y.reshape(-1)),
                (test_x[: self.test], test_y[: self.test]),
            )
        )
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        if self.size != SIDE:
            mean, std = channel_statistics(train[0])
        caveat = f"not CIFAR-10 as published, but a copy: {', '.join(other)} differ" if other else ""
        return Dataset(*train, *test, mean, std, CLASSES, caveat)


def reduce(images: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [N, c, s, s] -> uint8 [N, c, size, size]: means over squares, rounded; `size` divides s."""
    side = images.shape[-1]
    if size == side:
        return images
    factor = side // size
    squares = images.unflatten(3, (size, factor)).unflatten(2, (size, factor))
    sums = squares.sum((3, 5), dtype=torch.int32) + factor**2 // 2
    return sums.div_(factor**2, rounding_mode="floor").byte()


def find(data_dir: str) -> Path | None:
    """The complete folder of batches, else the archive: in `data_dir`, or `data_dir` itself, or None."""
    root = Path(data_dir).expanduser()
    for folder in (root / FOLDER, root):
        if all((folder / name).is_file() for name in PUBLISHED):
            return folder
    return next((path for path in (root / ARCHIVE, root) if path.is_file()), None)


def _downloaded(folder: Path) -> Path:
    """The archive, fetched into `folder`."""
    try:
        download(URL, folder / ARCHIVE, MD5)
    except DownloadError as error:
        raise UsageError(
            f"CIFAR-10 is not in {folder.resolve()} and could not be downloaded from\n  {URL}\n"
            f"  ({error})\n"
            f"Fetch that file by other means, put it (or its unpacked folder {FOLDER}) into a folder,\n"
            "and type\n  --data-dir FOLDER\n"
            "or train on the built-in data set, which needs no files:\n"
            "  --dataset synthetic"
        ) from error
    return folder / ARCHIVE


def _unpack(archive: Path) -> None:
    """Write the batches beside `archive`: every rank reads a folder several times faster than the archive.

    Where there is no room or no permission, or another job was quicker, the archive does as well.
    """
    try:
        with TemporaryDirectory(prefix=FOLDER, dir=archive.parent) as temporary:
            folder = Path(temporary) / FOLDER
            folder.mkdir()
            for name, data in _files(archive):
                (folder / name).write_bytes(data)
            if find(str(folder)) is not None:
                folder.rename(archive.parent / FOLDER)
    except OSError:
        pass


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every batch in the folder or archive `source`. Nothing is written to disk."""
    wanted = {f"{FOLDER}/{name}": name for name in PUBLISHED}
    try:
        if source.is_dir():
            for name in PUBLISHED:
                yield name, (source / name).read_bytes()
            return
        with tarfile.open(source, "r|gz") as archive:
            for member in archive:
                # Each batch once, and only plain files: a name can come twice, or as a link.
                if member.name in wanted and member.isfile() and (file := archive.extractfile(member)):
                    yield wanted.pop(member.name), file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _damaged(str(source), str(error), source) from error


def _batch(data: bytes, name: str, source: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [N, 3, 32, 32], and labels, int64 [N], of one pickled batch."""
    try:
        batch: dict[str, Any] = safe_pickle.load(data)
    except pickle.UnpicklingError as error:
        raise _damaged(name, str(error), source) from error
    images, labels = batch.get("data"), batch.get("labels")
    if not (isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == (3072,)):
        raise _damaged(name, "its data is not an array of bytes [N, 3072]", source)
    if not (isinstance(labels, list) and all(type(k) is int and 0 <= k < len(CLASSES) for k in labels)):
        raise _damaged(name, f"its labels are not a list of numbers from 0 to {len(CLASSES) - 1}", source)
    if not len(images) == len(labels) > 0:
        raise _damaged(name, f"it has {len(images)} images and {len(labels)} labels", source)
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _damaged(name: str, problem: str, source: Path) -> UsageError:
    return UsageError(
        f"{name} is damaged, incomplete or not CIFAR-10: {problem}\n"
        f"Delete {source} to have it downloaded again, or type --data-dir with another folder, "
        "or --dataset synthetic"
    )
