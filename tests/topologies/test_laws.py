"""Laws of every mixing matrix: all families x rules x numbers of nodes."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
import pickle
import struct

import numpy as np
import pytest

from topologies import FAMILIES, RULES, MixingMatrix, Schedule, Topology, TopologyError, build

# What cannot exist. A new family is tested at 1, 2, 3, 5 and 8 nodes without being named here.
SIZES = {"hypercube": (1, 2, 8), "davis": (32,), "file": ()}  # `file` has tests of its own
MEMBERS = [(name, n) for name in FAMILIES for n in SIZES.get(name, (1, 2, 3, 5, 8))]


def matrices() -> list[MixingMatrix]:
    found: list[MixingMatrix] = []
    for name, n in MEMBERS:
        topology = build(name, n)
        if isinstance(topology, Schedule):
            found += topology.rounds
            continue
        for rule in RULES:
            if rule != "best-constant" or topology.is_symmetric:
                matrix = build(name, n, rule)
                assert isinstance(matrix, Topology)
                found.append(dataclasses.replace(matrix, name=f"{name} {n} {rule}"))
    return found


MATRICES = matrices()
TOPOLOGIES = [matrix for matrix in MATRICES if isinstance(matrix, Topology)]
every_matrix = pytest.mark.parametrize("matrix", MATRICES, ids=lambda matrix: matrix.name)
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)


def test_every_family_and_rule_is_covered() -> None:
    words = {word for topology in TOPOLOGIES for word in topology.name.split()}
    assert set(RULES) <= words
    assert set(FAMILIES) - {"file", "one-peer"} <= words


@every_matrix
def test_rows_and_columns_sum_to_one(matrix: MixingMatrix) -> None:
    # fsum rounds once, so this is as exact as float64 can say it.
    assert [math.fsum(row) for row in matrix.W] == [1.0] * matrix.size
    assert [math.fsum(column) for column in matrix.W.T] == [1.0] * matrix.size
    assert matrix.is_doubly_stochastic


@every_matrix
def test_neighbors_agree_both_ways_and_with_the_weights(matrix: MixingMatrix) -> None:
    ranks = range(matrix.size)
    for i in ranks:
        ins, outs = matrix.in_neighbors(i), matrix.out_neighbors(i)
        assert ins == tuple(j for j in ranks if j != i and matrix.W[i, j] != 0)
        assert outs == tuple(j for j in ranks if i in matrix.in_neighbors(j))
        weights = matrix.weights(i)
        assert list(weights) == sorted({i, *ins})
        assert all(type(j) is int and type(w) is float and w == matrix.W[i, j] for j, w in weights.items())
        assert math.fsum(weights.values()) == 1.0
    assert matrix.max_degree == max(len(matrix.in_neighbors(i)) for i in ranks)  # doubly stochastic families


@every_topology
def test_static_topologies(topology: Topology) -> None:
    W, n = topology.W, topology.size
    reach = np.linalg.matrix_power((W != 0) | np.eye(n, dtype=bool), n)
    assert (reach > 0).all()
    assert 0 < topology.spectral_gap <= 1
    # The gap is what it says: rho is the factor of the distance to the average, for the worst x.
    assert np.linalg.norm(W - 1 / n, 2) == pytest.approx(1 - topology.spectral_gap, abs=1e-12)
    assert topology.mu == pytest.approx(np.abs(np.linalg.eigvals(W) - 1).max(), abs=1e-9)
    assert topology.is_static and topology.at(1) is topology and topology.at(10**9) is topology
    directed = topology.name.startswith("exponential") and n > 3
    assert topology.is_symmetric is not directed
    assert (W == W.T).all() or directed


@every_topology
def test_lazy_has_no_negative_eigenvalue(topology: Topology) -> None:
    name, n, rule = topology.name.split()
    if rule == "lazy":
        fast = build(name, int(n)).at(1).W
        assert np.abs(topology.W - (np.eye(int(n)) + fast) / 2).max() <= 2**-53
        assert np.linalg.eigvals(topology.W).real.min() >= -1e-12


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"davis", "file"}))
def test_one_node_is_the_identity(name: str) -> None:
    topology = build(name, 1)
    one = topology.at(1)
    assert one.W.tolist() == [[1.0]]
    assert one.in_neighbors(0) == one.out_neighbors(0) == ()
    assert one.weights(0) == {0: 1.0}
    assert topology.spectral_gap == 1.0 and topology.max_degree == 0 and one.mu == 0.0


@every_matrix
def test_matrices_are_frozen_and_survive_pickling(matrix: MixingMatrix) -> None:
    before = matrix.fingerprint()
    with pytest.raises(ValueError, match="read-only"):
        matrix.W[0, 0] = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        matrix.name = "other"  # type: ignore[misc]
    for twin in (pickle.loads(pickle.dumps(matrix)), copy.deepcopy(matrix)):
        assert type(twin) is type(matrix) and twin.name == matrix.name
        assert twin.fingerprint() == before and not twin.W.flags.writeable
    assert len({matrix, matrix}) == 1


def test_the_caller_keeps_its_own_matrix() -> None:
    W = np.full((2, 2), 0.5)
    topology = Topology("mine", W)
    W[0, 0] = 7
    assert topology.W[0, 0] == 0.5


def test_fingerprint_is_the_sha256_of_little_endian_float64() -> None:
    expected = hashlib.sha256(struct.pack("<4d", 0.75, 0.25, 0.25, 0.75)).hexdigest()
    W = [[0.75, 0.25], [0.25, 0.75]]
    for given in (W, np.array(W, dtype=">f8"), np.array(W, dtype=np.float32), np.asfortranarray(W)):
        assert Topology("any name", np.asarray(given)).fingerprint() == expected
    assert Topology("mirrored", np.array(W)[::-1]).fingerprint() != expected
    plus, minus = np.eye(3)[[1, 2, 0]] / 2 + np.eye(3) / 2, np.eye(3)[[1, 2, 0]] / 2 + np.eye(3) / 2
    minus[minus == 0] = -0.0
    assert Topology("plus", plus).fingerprint() == Topology("minus", minus).fingerprint()


def test_weights_say_who_receives_from_whom() -> None:
    W = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])  # 0 hears 1, 1 hears 2, 2 hears 0
    topology = Topology("cycle", W)
    assert topology.in_neighbors(0) == (1,) and topology.out_neighbors(0) == (2,)
    assert topology.weights(0) == {0: 0.5, 1: 0.5}
    assert not topology.is_symmetric and topology.is_doubly_stochastic


def test_a_row_stochastic_matrix_is_a_topology_that_is_not_doubly_stochastic() -> None:
    topology = Topology("uneven", np.array([[0.9, 0.1], [0.5, 0.5]]))
    assert not topology.is_doubly_stochastic and not topology.is_symmetric
    assert topology.spectral_gap == pytest.approx(1 - 0.4)  # the trace is 1 + l_2


def test_an_own_weight_of_zero_is_still_listed() -> None:
    topology = Topology("triangle", (np.ones((3, 3)) - np.eye(3)) / 2)
    assert topology.weights(1) == {0: 0.5, 1: 0.0, 2: 0.5}
    assert topology.spectral_gap == pytest.approx(0.5)


@pytest.mark.parametrize("rank", [-1, 8])
def test_unknown_ranks_are_errors(rank: int) -> None:
    ring = build("ring", 8).at(1)
    for question in (ring.in_neighbors, ring.out_neighbors, ring.weights):
        with pytest.raises(TopologyError, match=f"ring has no rank {rank}; its ranks are 0 to 7"):
            question(rank)
