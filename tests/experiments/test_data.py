"""Data are identified by what was read, whether images or text, and the ranks of a job must have the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments import data
from experiments.data.dataset import Data
from gossip.errors import UsageError
from tests.experiments.conftest import tiny_dataset


class TwoRanks:
    """A world whose other rank has read other data."""

    local_rank = 0

    def __init__(self, other: str) -> None:
        self.other = other

    def allgather(self, value: Any) -> list[Any]:
        return [value, self.other if len(str(value)) == 64 else value]


def images(folder: Path) -> tuple[str, Callable[..., Data]]:
    return f"--data-dir {folder}", partial(data.load, "synthetic:train=20,test=9", str(folder))


def text(folder: Path) -> tuple[str, Callable[..., Data]]:
    file = folder / "a.txt"
    file.write_text("a b c\n" * 20)
    return f"--data-file {file}", partial(data.load_text, "text", str(file))


@pytest.mark.parametrize("kind", [images, text])
def test_ranks_that_have_read_different_data_are_named(
    tmp_path: Path, kind: Callable[[Path], tuple[str, Callable[..., Data]]]
) -> None:
    typed, load = kind(tmp_path)
    digest = load().digest
    assert load(TwoRanks(digest)).digest == digest
    with pytest.raises(UsageError) as refused:
        load(TwoRanks("another"))
    said = f"{typed}: the data on rank 1 are not those of rank 0. Put the same files on every host."
    assert str(refused.value) == said


@pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
def test_the_digest_of_images_depends_on_every_part_of_them(part: str) -> None:
    mine, again = tiny_dataset(), tiny_dataset()
    assert mine is not again and mine.digest == again.digest
    changed = getattr(again, part).clone()
    changed.view(-1)[3] += 1
    assert replace(again, **{part: changed}).digest != mine.digest
    assert replace(again, **{part: getattr(again, part)[:-1]}).digest != mine.digest


def test_where_an_image_ends_counts() -> None:
    mine = tiny_dataset()
    reshaped = replace(mine, train_x=mine.train_x.view(-1, 3, 16, 64))
    assert reshaped.digest != mine.digest
