"""The order in which messages leave, and the bound on those that are on their way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gossip.outbox import Outbox, Posting
from gossip.transport.base import Transport


class Network:
    """Holds what was posted until it is told that the receiver has it."""

    def __init__(self) -> None:
        self.on_the_way: list[tuple[int, Callable[[], None]]] = []
        self.posted: list[int] = []

    def post(self, payload: Tensor, to: int, tag: int, wake: Callable[[], None]) -> None:
        self.posted.append(tag)
        self.on_the_way.append((tag, wake))

    def deliver(self, i: int = 0) -> None:
        self.on_the_way.pop(i)[1]()


def make(by_priority: bool, in_flight: float) -> tuple[Network, Outbox]:
    network = Network()
    return network, Outbox(cast(Transport, network), Posting(by_priority, in_flight))


def post(outbox: Outbox, tag: int, **order: Any) -> None:
    outbox.post(torch.zeros(1, dtype=torch.uint8), 0, tag, label="", **order)


@pytest.mark.parametrize("by_priority", [False, True])
def test_without_a_bound_everything_leaves_at_once(by_priority: bool) -> None:
    network, outbox = make(by_priority, float("inf"))
    for tag in range(9):
        post(outbox, tag, t=1, priority=-tag)
    assert network.posted == list(range(9)) and outbox.empty


@pytest.mark.parametrize(("by_priority", "order"), [(False, [0, 1, 2, 3, 4, 5]), (True, [0, 2, 4, 1, 3, 5])])
def test_the_most_urgent_leaves_first_and_equals_in_turn(by_priority: bool, order: list[int]) -> None:
    network, outbox = make(by_priority, 1)
    for tag, priority in enumerate([7, 5, 3, 5, 3, 5]):
        post(outbox, tag, t=1, priority=priority)
    while network.on_the_way:
        network.deliver()
        outbox.pump()
    assert network.posted == order


def test_an_older_round_goes_before_every_priority() -> None:
    """A rank that is still in that round waits for it, and might be what the others wait for."""
    network, outbox = make(True, 1)
    for tag, (t, priority) in enumerate([(1, 9), (2, 0), (1, 8), (2, 1), (1, 0)]):
        post(outbox, tag, t=t, priority=priority)
    while network.on_the_way:
        network.deliver()
        outbox.pump()
    assert network.posted == [0, 4, 2, 1, 3]


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_the_bound_holds_until_the_receiver_has_a_message(in_flight: int) -> None:
    """Whenever fewer are on their way, and only then, the most urgent of those that wait leaves."""
    network, outbox = make(True, in_flight)
    choose, waiting, expected = random.Random(in_flight), list[tuple[int, int]](), list[int]()
    for tag in range(200):
        priority = choose.randrange(6)
        waiting.append((priority, tag))
        post(outbox, tag, t=1, priority=priority)
        while True:
            while waiting and len(expected) - delivered(network) < in_flight:
                waiting.remove(first := min(waiting))
                expected.append(first[1])
            assert network.posted == expected and outbox.empty == (not waiting)
            assert len(network.on_the_way) <= in_flight
            if not network.on_the_way or choose.random() < 0.6:
                break
            network.deliver(choose.randrange(len(network.on_the_way)))
            outbox.pump()


def delivered(network: Network) -> int:
    return len(network.posted) - len(network.on_the_way)
