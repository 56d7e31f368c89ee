from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from gossip.errors import UsageError
from gossip.shard import Position, Shard, ShardSampler, seed_for


def flat(epochs: list[list[list[int]]]) -> list[int]:
    """The indices of all ranks' batches, sorted."""
    return sorted(i for batches in epochs for batch in batches for i in batch)


def samplers(length: int, size: int, batch_size: int, **options: Any) -> list[ShardSampler]:
    return [ShardSampler(length, rank, size, batch_size, **options) for rank in range(size)]


@given(
    st.integers(1, 9).flatmap(lambda size: st.tuples(st.just(size), st.integers(size, 200))),
    st.integers(1, 40),
    st.booleans(),
)
def test_disjoint_complete_and_in_step(
    size_and_length: tuple[int, int], batch_size: int, shuffle: bool
) -> None:
    size, length = size_and_length
    epochs = [list(s) for s in samplers(length, size, batch_size, shuffle=shuffle)]
    assert len({len(batches) for batches in epochs}) == 1
    assert all(len(s) == len(epochs[0]) for s in samplers(length, size, batch_size))
    assert all(batch for batches in epochs for batch in batches)
    assert flat(epochs) == list(range(length))
    # A batch grows beyond batch_size only where the alternative is an empty batch on another rank.
    largest = max(len(batch) for batches in epochs for batch in batches)
    assert largest <= batch_size + (batch_size == 1 and length % size != 0)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 10])
def test_three_ranks_share_ten_samples(batch_size: int) -> None:
    epochs = [list(s) for s in samplers(10, 3, batch_size)]
    assert [sum(map(len, batches)) for batches in epochs] == [4, 3, 3]
    assert len({len(batches) for batches in epochs}) == 1
    assert flat(epochs) == list(range(10))


def test_full_batches_then_the_rest_where_every_rank_has_one() -> None:
    for sampler in samplers(100, 4, 8):
        assert [len(batch) for batch in sampler] == [8, 8, 8, 1]


def test_order_changes_by_epoch_and_seed_and_repeats_by_seed() -> None:
    sampler = ShardSampler(64, 0, 2, 8, seed=5)
    first, second = list(sampler), list(sampler)
    assert first != second
    again = ShardSampler(64, 0, 2, 8, seed=5)
    assert (list(again), list(again)) == (first, second)
    assert list(ShardSampler(64, 0, 2, 8, seed=6)) != first


def test_without_shuffle_ranks_take_turns() -> None:
    assert [list(s) for s in samplers(8, 2, 2, shuffle=False)] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


@pytest.mark.parametrize("stop", range(9))
def test_sampler_resumes_at_the_next_batch(stop: int) -> None:
    whole = ShardSampler(64, 1, 2, 8)
    expected = list(whole) + list(whole) + list(whole)  # 3 epochs of 4 batches
    first = ShardSampler(64, 1, 2, 8)
    got: list[list[int]] = []
    while len(got) < stop:
        got += list(islice(first, stop - len(got)))
    second = ShardSampler(64, 1, 2, 8)
    second.load_state_dict(first.state_dict())
    while len(got) < len(expected):
        got += list(second)
    assert got == expected


def test_an_epoch_left_early_is_not_continued_by_the_next_loop() -> None:
    sampler = ShardSampler(64, 0, 2, 8)
    for _ in sampler:
        break
    assert list(sampler) == [batch.tolist() for batch in sampler.batches(1)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((2, 0, 3, 1), "2 samples for 3 ranks"),
        ((8, 0, 2, 0), "batch size 0"),
        ((8, 0, 2, 1, True, -1), "seed -1"),
    ],
)
def test_impossible_shards_are_refused(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ShardSampler(*arguments)


# -- Shard -------------------------------------------------------------------------------------------


DATA = TensorDataset(torch.arange(50))


def epoch_of(shard: Iterable[Any]) -> list[list[int]]:
    return [batch.tolist() for (batch,) in shard]


def test_shards_cover_the_data_set() -> None:
    shards = [Shard(DATA, 4, rank, 3) for rank in range(3)]
    epochs = [epoch_of(shard) for shard in shards]
    assert {len(shard) for shard in shards} == {len(batches) for batches in epochs}
    assert flat(epochs) == list(range(50))
    assert epoch_of(shards[0]) != epochs[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_shard_resumes_after_the_batches_that_the_loop_received(workers: int) -> None:
    if workers and "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("worker processes start too slowly here")
    plain = Shard(DATA, 4, 0, 2)
    expected = epoch_of(plain) + epoch_of(plain)
    shard = Shard(DATA, 4, 0, 2, num_workers=workers)
    got: list[list[int]] = []
    state: Position = {"epoch": -1, "position": -1}
    for (batch,) in shard:
        got.append(batch.tolist())
        if len(got) == 2:
            state = shard.state_dict()
            break
    resumed = Shard(DATA, 4, 0, 2, num_workers=workers)
    resumed.load_state_dict(state)
    assert len(resumed) == len(plain)  # a whole epoch's, not what is left of it
    assert got + epoch_of(resumed) + epoch_of(resumed) == expected


def test_ranks_that_begin_as_many_epochs_share_each_of_them() -> None:
    """A look at the first batch begins an epoch: on all ranks alike, the next is whole again."""
    shards = [Shard(DATA, 4, rank, 3) for rank in range(3)]
    for shard in shards:
        next(iter(shard))
    assert flat([epoch_of(shard) for shard in shards]) == list(range(50))


def test_state_saved_after_the_last_batch_does_not_repeat_the_epoch() -> None:
    shard = Shard(DATA, 4, 0, 2)
    for _ in shard:
        state = shard.state_dict()
    resumed = Shard(DATA, 4, 0, 2)
    resumed.load_state_dict(state)
    assert epoch_of(resumed) == []
    assert epoch_of(resumed) == epoch_of(shard)


def test_iterating_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    epoch_of(Shard(DATA, 4, 0, 2))
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert drawn == torch.rand(())


def test_loader_options_are_passed_on() -> None:
    shard = Shard(DATA, 4, 0, 2, collate_fn=lambda samples: len(samples))
    assert all(isinstance(batch, int) for batch in shard)
    with pytest.raises(ValueError):  # the sharding owns these
        Shard(DATA, 4, 0, 2, drop_last=True)


def test_the_sampler_works_in_a_plain_loader() -> None:
    loader = DataLoader(DATA, batch_sampler=ShardSampler(50, 0, 1, 7))
    assert flat([epoch_of(loader)]) == list(range(50))


def test_data_sets_without_a_length_are_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="Stream has no length"):
        Shard(Stream(), 1, 0, 1)


def test_seeds_differ_by_every_part_of_the_key() -> None:
    keys = [("a", 0, 0, 1), ("a", 0, 1, 0), ("a", 1, 0, 0), ("b", 0, 0, 0), ("a", 0, 0, 0)]
    assert len({seed_for(*key) for key in keys}) == len(keys)
    assert all(0 <= seed_for(*key) < 2**63 for key in keys)
    assert seed_for("a", 1) == seed_for("a", 1)
