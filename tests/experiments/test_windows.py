"""All ranks' windows together hold every pair of neighbouring tokens once, in order along the columns."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor

from experiments.data.windows import NO_TARGET, Windows, columns
from gossip.errors import UsageError

Window = tuple[Tensor, Tensor]


def windows(rank: int = 0, size: int = 2, batch_size: int = 3, bptt: int = 4, length: int = 71) -> Windows:
    """Of a text whose every token is its own position."""
    return Windows(torch.arange(length), rank, size, batch_size, bptt)


@pytest.mark.parametrize("length", [25, 26, 29, 71, 100])
@pytest.mark.parametrize(("size", "batch_size"), [(1, 1), (1, 5), (2, 3), (3, 2), (8, 3)])
@pytest.mark.parametrize("bptt", [1, 2, 3, 4, 100])
def test_every_pair_comes_once_in_equally_many_windows(
    length: int, size: int, batch_size: int, bptt: int
) -> None:
    ranks = [windows(rank, size, batch_size, bptt, length) for rank in range(size)]
    epochs = [list(loader) for loader in ranks]
    assert {len(epoch) for epoch in epochs} == {len(ranks[0])}
    pairs: list[int] = []
    for epoch in epochs:
        assert all(x.shape == y.shape and x.shape[1] == batch_size for x, y in epoch)
        assert all(len(x) == bptt for x, _ in epoch[:-1]) and 1 <= len(epoch[-1][0]) <= bptt + 1
        assert all((y != NO_TARGET).any() for _, y in epoch)  # else its mean loss would be 0/0
        x, y = (torch.cat(parts) for parts in zip(*epoch, strict=True))
        for own, targets in zip(x.unbind(1), y.unbind(1), strict=True):
            own, targets = own[targets != NO_TARGET], targets[targets != NO_TARGET]
            assert torch.equal(targets, own + 1) and torch.equal(own[1:], own[:-1] + 1)
            pairs += own.tolist()
    assert pairs == list(range(length - 1))  # disjoint, complete, and a contiguous part for every rank


@pytest.mark.parametrize("count", [1, 2, 7, 16, 40])
def test_columns_are_as_equally_long_as_can_be(count: int) -> None:
    _, y = columns(torch.arange(30), count)
    lengths = (y != NO_TARGET).sum(0)
    assert lengths.sum() == 29 and lengths.max() - lengths.min() <= 1


def equal(a: list[Window], b: list[Window]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 7])
def test_resumes_where_it_stood(stop: int) -> None:
    """Windows and memory, in the middle of an epoch and at its end (3 windows)."""

    def read(loader: Windows, n: int) -> list[Window]:
        got: list[Window] = []
        while len(got) < n:
            for window in islice(loader, n - len(got)):
                before.append(None if loader.memory is None else float(loader.memory[0]))
                loader.memory = (window[0].sum(),)  # what a model would remember
                got.append(window)
        return got

    before: list[float | None] = []
    whole = read(windows(), 9)
    remembered = before
    assert len(windows()) == 3 and [m is None for m in remembered] == [i % 3 == 0 for i in range(9)]
    before = []
    first, second = windows(), windows()
    got = read(first, stop)
    second.load_state_dict(first.state_dict())
    assert equal(got + read(second, 9 - stop), whole) and before == remembered


def test_too_short_a_text_says_what_it_needs() -> None:
    windows(size=2, batch_size=3, length=7)
    with pytest.raises(UsageError, match=r"6 tokens, too few for 2 nodes x --batch-size 3 .* need 7: lower"):
        windows(size=2, batch_size=3, length=6)
