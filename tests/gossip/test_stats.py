"""What the statistics say about compression: whether it pays, and what it saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import gossip
from compressors import CODECS
from gossip.algorithms.base import ParameterMethod, State, Steps, option
from gossip.effects import Node, message_key
from gossip.stats import Stats
from tests.quadratics import D, Quadratic, simulate


def spent(seconds: float, saved_bytes: int) -> Stats:
    stats = Stats()
    stats.encode, stats.decode, stats.saved_bytes = seconds / 4, seconds * 3 / 4, saved_bytes
    stats.end_step()
    return stats


@pytest.mark.parametrize("seconds", (0.01, 1.0, 30.0))
def test_a_codec_that_takes_longer_than_the_bytes_it_saves_is_told(seconds: float) -> None:
    stats = spent(seconds, saved_bytes=1_000_000_000)
    break_even = 1e9 / seconds  # bytes/s
    assert stats.compression_loss(stats.saved_bytes, 0.99 * break_even) is None
    said = stats.compression_loss(stats.saved_bytes, 1.01 * break_even)
    assert said is not None and "more time than it saved" in said


def test_nothing_is_told_without_a_known_link() -> None:
    assert spent(10.0, 1_000).compression_loss(1_000, 0.0) is None
    assert "the 0 MB saved" in str(spent(10.0, 1_000).compression_loss(-5, 1e9))


def test_an_error_that_overflows_does_not_count() -> None:
    stats = Stats()
    stats.sample_error(torch.tensor([1e30, 1.0]), torch.zeros(2))
    assert stats.take()["compression_error"] is None
    stats.sample_error(torch.tensor([1e30, 1.0]), torch.zeros(2))
    stats.sample_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0]))
    assert stats.take()["compression_error"] == pytest.approx(0.8)


@pytest.mark.parametrize("codec", ("fp16", "qsgd:bits=8", "sign", "topk:ratio=0.25"))
def test_sent_and_saved_are_the_dense_bytes(codec: str) -> None:
    def saved(session: gossip.Session, model: Quadratic) -> int:
        return session.stats.saved_bytes

    run = simulate("dcd", 3, codec, steps=4, watch=saved)
    for rank, stats in enumerate(run.stats):
        assert stats["bytes_sent"] + run.watched[rank][-1] == stats["messages_sent"] * 4 * D


@dataclass(frozen=True)
class Sender(ParameterMethod):
    """Moves x by C(y − x), in one way or the other."""

    name: ClassVar[str] = "sender"

    adds: bool = option(False, "by add_to")

    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        y = yield node.update()
        if self.adds:
            assert node.send(y - x, add_to=x) is x
        else:
            x += node.send(y - x)
        yield node.settled()
        yield node.receive()


@pytest.mark.parametrize("codec", CODECS)
def test_sending_and_adding_is_sending_then_adding(codec: str) -> None:
    """`node.send(v, add_to=x)` leaves bitwise x + C(v) in x."""
    apart, at_once = (simulate(Sender(adds), 2, codec, steps=3) for adds in (False, True))
    assert (apart.X[-1] != apart.X[0]).any()
    np.testing.assert_array_equal(apart.X, at_once.X)


def test_every_message_is_rounded_by_noise_of_its_own() -> None:
    """No two messages of a run share a key: of two buckets neither."""
    n, steps = 3, 4
    run = simulate("dcd", n, "qsgd:bits=4", steps=steps, bucket_mb=20 / 2**20)  # each tensor a bucket
    assert len(run.log) == n * steps * 2


@pytest.mark.parametrize("spec", ("dcd", "choco"))
def test_the_compression_error_is_that_of_the_messages(spec: str) -> None:
    """Of one round in ten; also where C(v) is added to x at once, as DCD does."""
    run = simulate(spec, 3, "sign", steps=12)
    for rank, stats in enumerate(run.stats):
        sampled = [run.log[message_key(0, rank, t, 0, 0)] for t in (1, 11)]
        errors = [float((v - c).norm() / v.norm()) for v, c in sampled]
        assert stats["compression_error"] == pytest.approx(np.mean(errors), rel=1e-5)
