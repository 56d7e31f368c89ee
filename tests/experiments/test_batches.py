from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.data.batches import Batches
from experiments.data.partition import split
from gossip.errors import UsageError

N = 50
# Image i is filled with i, so that unaugmented batches tell which samples they hold.
X = torch.arange(N, dtype=torch.uint8).view(-1, 1, 1, 1).expand(N, 3, 32, 32).contiguous()
NOISE = torch.randint(0, 256, (N, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 10


def batches(rank: int = 0, size: int = 2, batch_size: int = 4, x: Tensor = X, **options: Any) -> Batches:
    parts = split(Y, size, "iid", 0)
    return Batches(x, Y, parts, rank, batch_size, torch.zeros(3), torch.full((3,), 1 / 255), **options)


def ids(loader: Batches) -> list[list[int]]:
    """The samples of one epoch's batches, read off the images."""
    return [x[:, 0, 0, 0].round().int().tolist() for x, _ in loader]


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 25, 100])
def test_all_ranks_together_see_every_sample_once_in_equally_many_batches(size: int, batch_size: int) -> None:
    loaders = [batches(rank, size, batch_size, augmented=False) for rank in range(size)]
    epochs = [ids(loader) for loader in loaders]
    assert {len(epoch) for epoch in epochs} == {len(loader) for loader in loaders}
    assert len({len(epoch) for epoch in epochs}) == 1
    assert all(batch for epoch in epochs for batch in epoch)
    assert sorted(i for epoch in epochs for batch in epoch for i in batch) == list(range(N))


def test_a_rank_keeps_its_part_and_reshuffles_it() -> None:
    part = split(Y, 2, "iid", 0)[1]
    loader = batches(1, augmented=False)
    epochs = [[i for batch in ids(loader) for i in batch] for _ in range(4)]
    assert all(sorted(epoch) == part.tolist() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_images_and_labels_belong_together() -> None:
    loader = batches(augmented=False)
    for (_, y), samples in zip(loader, map(torch.from_numpy, loader.indices(0)), strict=True):
        assert torch.equal(y, Y[samples])


def test_what_comes_out() -> None:
    for x, y in batches(x=NOISE):
        assert x.dtype == torch.float32 and x.shape[1:] == (3, 32, 32)
        assert y.dtype == torch.int64 and y.shape == (len(x),)


def test_images_are_normalised() -> None:
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 1.0, 2.0])
    loader = Batches(NOISE, Y, [np.arange(N)], 0, N, mean, std, augmented=False)
    ((x, _),) = loader
    (order,) = loader.indices(0)
    expected = (NOISE[order] / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    torch.testing.assert_close(x, expected)


def test_a_rerun_is_identical_and_another_seed_is_not() -> None:
    first, again, other = (list(batches(x=NOISE, seed=seed)) for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


def test_augmentation_differs_by_epoch_and_rank() -> None:
    """Even where the sample is the same one."""
    image = NOISE[:1].expand(40, -1, -1, -1)
    parts = [np.arange(20), np.arange(20, 40)]
    loaders = [Batches(image, Y[:40], parts, rank, 5, torch.zeros(3), torch.ones(3)) for rank in (0, 1)]
    epochs = [torch.cat([x for x, _ in loader]) for loader in (*loaders, loaders[0])]
    for i, a in enumerate(epochs):
        for b in epochs[:i]:
            assert not torch.equal(a, b)
    batch, after = epochs[0][:5], epochs[0][5:10]
    assert not torch.equal(batch, after)


@pytest.mark.parametrize("stop", [0, 1, 4, 6, 7, 8, 14])
def test_resumes_bit_for_bit(stop: int) -> None:
    whole = batches(x=NOISE)
    expected = [batch for _ in range(3) for batch in whole]
    first = batches(x=NOISE)
    got: list[tuple[Tensor, Tensor]] = []
    while len(got) < stop:
        got += list(islice(first, stop - len(got)))
    second = batches(x=NOISE)
    second.load_state_dict(first.state_dict())
    while len(got) < len(expected):
        got += list(second)
    assert same(got, expected)


def test_the_global_generators_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(batches(x=NOISE))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_empty_part_is_refused() -> None:
    with pytest.raises(UsageError, match="every rank needs at least one sample"):
        Batches(X, Y, [np.arange(3), np.arange(0)], 0, 1, torch.zeros(3), torch.ones(3))
