"""Time-varying topologies."""

from __future__ import annotations

import dataclasses
import math
import pickle
from functools import reduce

import numpy as np
import pytest

from topologies import MixingMatrix, Schedule, TopologyError, build

NOTHING = np.eye(2)
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])


def one_peer(n: int) -> Schedule:
    schedule = build("one-peer", n)
    assert isinstance(schedule, Schedule)
    return schedule


def product(schedule: Schedule, start: int) -> np.ndarray:
    rounds = [schedule.at(t).W for t in range(start, start + schedule.period)]
    return reduce(lambda done, W: W @ done, rounds)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 8, 16, 31])
def test_one_peer_sends_one_message_to_the_next_hop(n: int) -> None:
    schedule = one_peer(n)
    assert schedule.size == n and schedule.period == math.ceil(math.log2(n)) and not schedule.is_static
    assert schedule.max_degree == 1 and schedule.is_doubly_stochastic
    for t in range(1, 3 * schedule.period + 1):
        hop = 2 ** ((t - 1) % schedule.period)
        for i in range(n):
            assert schedule.at(t).out_neighbors(i) == ((i + hop) % n,)
            assert schedule.at(t).weights(i) == {i: 0.5, (i - hop) % n: 0.5}


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("start", [1, 2, 3])
def test_one_peer_averages_exactly_in_log2_n_rounds(n: int, start: int) -> None:
    """Ying et al. 2021: for n = 2^k the product of any k rounds in a row is the exact average."""
    assert (product(one_peer(n), start) == 1 / n).all()
    assert one_peer(n).spectral_gap == 1.0


@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
def test_the_gap_of_a_schedule_is_its_pace_per_round(n: int) -> None:
    schedule = one_peer(n)
    rho = np.linalg.norm(product(schedule, 1) - 1 / n, 2)  # circulant, so the norm is the spectral radius
    assert (1 - schedule.spectral_gap) ** schedule.period == pytest.approx(rho, abs=1e-12)
    assert 0 < schedule.spectral_gap < 1


def test_a_schedule_is_symmetric_when_every_round_is() -> None:
    assert one_peer(2).is_symmetric and not one_peer(8).is_symmetric


def test_rounds_are_the_same_objects_every_time() -> None:
    schedule = one_peer(8)
    assert schedule.at(2) is schedule.at(5) is schedule.at(2 + 3 * 10**6)


def test_schedules_are_frozen_and_picklable() -> None:
    schedule = one_peer(8)
    twin = pickle.loads(pickle.dumps(schedule))
    assert twin.fingerprint() == schedule.fingerprint() == one_peer(8).fingerprint()
    assert twin.name == "one-peer" and not twin.at(1).W.flags.writeable
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.rounds = ()  # type: ignore[misc]
    backwards = Schedule("backwards", schedule.rounds[::-1])
    assert len({s.fingerprint() for s in (schedule, backwards, one_peer(16), build("ring", 8))}) == 4


def test_a_single_round_may_leave_nodes_out_but_the_cycle_may_not() -> None:
    idle, average = MixingMatrix("idle", NOTHING), MixingMatrix("average", np.full((2, 2), 0.5))
    assert Schedule("sometimes", (idle, average)).spectral_gap == 1.0
    for rounds in [(idle,), (idle, idle), (MixingMatrix("swap", SWAP),)]:
        with pytest.raises(
            TopologyError, match=r"never: the \d rounds of the schedule together never reach consensus"
        ):
            Schedule("never", rounds)


@pytest.mark.parametrize("t", [0, -3])
def test_rounds_count_from_one(t: int) -> None:
    with pytest.raises(TopologyError, match=f"one-peer: there is no round {t}; rounds count from 1"):
        one_peer(8).at(t)


def test_rounds_have_one_size() -> None:
    with pytest.raises(
        TopologyError, match=r"mixed: a schedule needs one or more rounds of one size, given \[2, 3\]"
    ):
        Schedule("mixed", (MixingMatrix("a", np.eye(2)), MixingMatrix("b", np.eye(3))))
    with pytest.raises(
        TopologyError, match=r"empty: a schedule needs one or more rounds of one size, given \[\]"
    ):
        Schedule("empty", ())
