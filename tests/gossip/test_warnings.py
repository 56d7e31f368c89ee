"""Which combinations of method, codec and graph warn or are refused, and what they say."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gossip
from gossip.algorithms import ALGORITHMS, theory
from gossip.errors import UsageError
from gossip.spec import make_algorithm, make_codec, make_topology
from tests.quadratics import simulate


def warned(algorithm: str, codec: str, topology: str = "ring", n: int = 8) -> list[str]:
    return list(make_algorithm(algorithm).check(make_topology(topology, n), make_codec(codec)))


BAD = {
    ("naive", "qsgd:bits=8"): "does not converge",
    ("naive", "fp16"): "does not converge",
    ("ecd", "qsgd:bits=8"): "the estimates are off by a whole step",
    ("ecd", "topk:ratio=0.01"): "the estimates are off by a whole step",
    ("ecd", "sign"): "the estimates are off by a whole step",
    ("dcd", "qsgd:bits=4"): "theory asks for",
    ("dcd", "qsgd:bits=2"): "theory asks for",
    ("dcd", "sign"): "is biased",
    ("dcd", "topk:ratio=0.01"): "is biased",
    ("choco:gamma=1", "topk:ratio=0.01"): "likely to diverge",
    ("choco:gamma=0.5", "randk:ratio=0.1"): "likely to diverge",
    ("deepsqueeze:gamma=1", "topk:ratio=0.1"): "likely to diverge",
}

GOOD = [
    ("local", "identity"),
    ("allreduce", "identity"),
    ("dpsgd", "identity"),
    ("naive", "identity"),  # D-PSGD
    ("dcd", "identity"),
    ("dcd", "qsgd:bits=8"),
    ("dcd", "fp16"),
    ("ecd", "identity"),
    ("ecd", "grid"),
    ("ecd", "fp16"),
    ("choco", "qsgd:bits=8"),
    ("choco:gamma=1", "qsgd:bits=4"),
    ("choco", "qsgd:bits=2"),
    ("choco", "sign"),
    ("choco:gamma=0.45", "sign"),
    ("choco", "topk:ratio=0.01"),
    ("choco:gamma=0.04", "topk:ratio=0.01"),
    ("choco", "randk:ratio=0.1"),
    ("deepsqueeze", "qsgd:bits=8"),
    ("deepsqueeze", "topk:ratio=0.01"),
]


@pytest.mark.parametrize(("algorithm", "codec"), BAD)
def test_bad_combinations_warn_once(algorithm: str, codec: str) -> None:
    (text,) = warned(algorithm, codec)
    assert BAD[algorithm, codec] in text


@pytest.mark.parametrize(("algorithm", "codec"), GOOD)
def test_good_combinations_do_not(algorithm: str, codec: str) -> None:
    assert warned(algorithm, codec) == []


def test_dcd_states_both_numbers() -> None:
    (text,) = warned("dcd", "qsgd:bits=4")
    assert "0.0732" in text
    measured = theory.alpha(make_codec("qsgd:bits=4"))
    assert f"{measured:.3g}" in text
    assert measured == pytest.approx(0.189, rel=0.05)


@pytest.mark.parametrize(("n", "threshold"), [(8, 0.0732), (16, 0.0190)])
def test_dcd_threshold_on_rings(n: int, threshold: float) -> None:
    ring = np.eye(n) / 3
    for i in range(n):
        ring[i, (i + 1) % n] = ring[i, i - 1] = 1 / 3
    assert theory.dcd_threshold(make_topology(ring, n).at(1)) == pytest.approx(threshold, abs=5e-5)


def test_one_node_has_nothing_to_warn_about_in_dcd() -> None:
    assert warned("dcd", "qsgd:bits=2", n=1) == []


def test_join_warns_on_one_rank() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        simulate("naive", 3, "qsgd:bits=8", steps=1)
    assert [str(w.message) for w in caught if "naive" in str(w.message)] == warned("naive", "qsgd:bits=8")


ONE_WAY = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])


@pytest.mark.parametrize("name", [name for name, method in ALGORITHMS.items() if method.needs_symmetric])
@pytest.mark.parametrize(("topology", "n"), [("one-peer", 4), ("exponential", 5), (ONE_WAY, 3)])
def test_replica_methods_refuse_schedules_and_one_way_graphs(name: str, topology: object, n: int) -> None:
    with pytest.raises(UsageError) as caught:
        simulate(name, n, topology=topology, steps=1)
    given = topology if isinstance(topology, str) else "custom"
    for part in (name, given, "symmetric", "ring"):  # the method, what was given, what fits, what to type
        assert part in str(caught.value)


def test_replica_methods_are_dcd_ecd_and_choco() -> None:
    refusing = {name for name, method in ALGORITHMS.items() if method.needs_symmetric}
    assert refusing == {"dcd", "ecd", "choco"}


@pytest.mark.parametrize(
    "spec", ["choco:gamma=0", "choco:gamma=1.5", "deepsqueeze:gamma=-1", "dpsgd:every=0"]
)
def test_options_out_of_range_are_usage_errors(spec: str) -> None:
    with pytest.raises(UsageError, match=spec.split(":")[1]):
        make_algorithm(spec)


@pytest.mark.parametrize("order", ["atx", ""])
def test_dpsgd_order_is_one_of_two(order: str) -> None:
    with pytest.raises(ValueError, match="order=mix or order=atc"):
        gossip.algorithms.DPSGD(order=order)  # type: ignore[arg-type]
