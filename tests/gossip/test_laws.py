"""The laws of the methods, on the real engine with virtual nodes, and agreement with the float64 oracle."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import gossip
from compressors import CODECS, Compressor, relative_error
from gossip.algorithms import ALGORITHMS, Algorithm, ParameterMethod
from gossip.session import Session
from gossip.spec import make_algorithm, make_codec, make_topology
from tests import oracle
from tests.quadratics import (
    LR,
    MOMENTUM,
    D,
    Quadratic,
    assert_close,
    curvature,
    loop,
    simulate,
    slope,
    start,
    updates,
)

SIZES = (1, 2, 3, 5, 8)
LOSSY = ("qsgd:bits=8", "qsgd:bits=4,block=16", "sign", "topk:ratio=0.25", "grid", "randk:ratio=0.25")
COMPRESSED = ("naive", "dcd", "ecd", "choco", "deepsqueeze")
EXACT = ("local", "allreduce", "dpsgd", "dpsgd:order=atc", "plump")
SLIM = "slim:alpha=0.4,beta=0.2,q=3,residual=keep"  # its oracle is in test_parameter_server.py
PARAMETER = (*(spec for spec in EXACT if spec != "allreduce"), *COMPRESSED)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Most combinations here are meant to be bad; what warns is tested in test_warnings.py."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def with_every(spec: str, every: int) -> str:
    return spec if every == 1 else f"{spec}{',' if ':' in spec else ':'}every={every}"


def contraction_scale(method: str, codec: Compressor) -> float:
    """1/(1 + omega), to three digits, for error feedback on unbiased codecs with large relative noise."""
    omega = relative_error(codec) ** 2
    feedback = method.partition(":")[0] in ("choco", "deepsqueeze")
    scaled = feedback and codec.unbiased and codec.relative_noise and omega > 0.05
    return float(f"{1 / (1 + omega):.3g}") if scaled else 1.0


def check_against_oracle(spec: str, n: int, codec_spec: str, topology: str = "ring", steps: int = 24) -> None:
    method, graph, codec = make_algorithm(spec), make_topology(topology, n), make_codec(codec_spec)
    run = simulate(spec, n, codec, steps=steps, topology=topology)
    every = method.every
    options: dict[str, Any] = {}
    if method.name == "dpsgd":
        options["order"] = method.order  # type: ignore[attr-defined]
    if method.name in ("choco", "deepsqueeze"):
        options["gamma"] = codec.contraction_gamma()
    rounds = oracle.METHODS[method.name](
        run.X[0].astype(np.float64),
        lambda t: graph.at(t).W,
        updates(n, every),
        run.recorded(contraction_scale(spec, codec)) if method.uses_compressor else oracle.identity,
        **options,
    )
    for x, expected in zip(run.X[every::every], rounds, strict=False):
        assert_close(x, expected)


def test_every_parameter_method_has_an_oracle() -> None:
    methods = {name for name, cls in ALGORITHMS.items() if issubclass(cls, ParameterMethod)}
    assert methods <= oracle.METHODS.keys()


# -- agreement with the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("spec", EXACT)
def test_exact_methods_follow_the_oracle(spec: str, n: int) -> None:
    check_against_oracle(spec, n, "identity")


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("codec", ("identity", "qsgd:bits=4,block=16", "topk:ratio=0.25"))
@pytest.mark.parametrize("spec", COMPRESSED)
def test_compressed_methods_follow_the_oracle(spec: str, codec: str, n: int) -> None:
    check_against_oracle(spec, n, codec)


@pytest.mark.parametrize("codec", ("qsgd:bits=8", "sign", "grid", "randk:ratio=0.25"))
@pytest.mark.parametrize("spec", COMPRESSED)
def test_other_codecs(spec: str, codec: str) -> None:
    check_against_oracle(spec, 5, codec)


@pytest.mark.parametrize("codec", ("identity", "qsgd:bits=4,block=16", "topk:ratio=0.25"))
@pytest.mark.parametrize("spec", PARAMETER)
def test_three_local_steps_between_exchanges(spec: str, codec: str) -> None:
    check_against_oracle(with_every(spec, 3), 5, codec_for(spec, codec))


@pytest.mark.parametrize("topology", ("one-peer", "exponential"))
@pytest.mark.parametrize("spec", [s for s in PARAMETER if not make_algorithm(s).needs_symmetric])
def test_methods_without_replicas_follow_schedules_and_directed_graphs(spec: str, topology: str) -> None:
    check_against_oracle(spec, 8, codec_for(spec, "qsgd:bits=8"), topology)


@pytest.mark.parametrize("topology", ("star", "torus:2x4", "complete"))
@pytest.mark.parametrize("spec", COMPRESSED)
def test_other_graphs(spec: str, topology: str) -> None:
    check_against_oracle(spec, 8, "qsgd:bits=8", topology)


# -- how the engine runs a method changes nothing -----------------------------------------------------------


def codec_for(spec: str, codec: str) -> str:
    return codec if make_algorithm(spec).uses_compressor else "identity"


@pytest.mark.parametrize("spec", (*ALGORITHMS, SLIM, *(with_every(spec, 3) for spec in (*PARAMETER, SLIM))))
def test_overlap_changes_nothing(spec: str) -> None:
    codec = codec_for(spec, "qsgd:bits=8")
    hidden = simulate(spec, 5, codec, steps=10)
    exposed = simulate(spec, 5, codec, steps=10, overlap=False)
    np.testing.assert_array_equal(hidden.X, exposed.X)


@pytest.mark.parametrize("spec", (*EXACT, *COMPRESSED))
def test_buckets_change_nothing(spec: str) -> None:
    one = simulate(spec, 3, steps=8)
    many = simulate(spec, 3, steps=8, bucket_mb=20 / 2**20)
    if make_algorithm(spec).kind == "gradient":
        assert_close(many.X, one.X, 1e-6)
    else:
        np.testing.assert_array_equal(many.X, one.X)


# -- replicas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("n", SIZES)
def test_dcd_replicas_are_bitwise_their_owners_x(n: int, codec: str) -> None:
    def watch(session: Session, model: Quadratic) -> bool:
        hat = session.algorithm_state()[0]["hat"]
        owners = session.world.allgather(model.flat())
        assert sorted(hat) == list(session.topology.at(1).in_neighbors(session.rank))
        return all(torch.equal(replica, owners[j]) for j, replica in hat.items())

    run = simulate("dcd", n, codec, steps=12, watch=watch)
    assert all(itertools.chain(*run.watched))


@pytest.mark.parametrize("codec", LOSSY)
def test_ecd_estimates_are_bitwise_equal_on_all_nodes(codec: str) -> None:
    def watch(session: Session, model: Quadratic) -> bool:
        hat = session.algorithm_state()[0]["hat"]
        owners = session.world.allgather(hat[session.rank].clone())
        return all(torch.equal(estimate, owners[j]) for j, estimate in hat.items())

    assert all(itertools.chain(*simulate("ecd", 5, codec, steps=12, watch=watch).watched))


@pytest.mark.parametrize("codec", LOSSY)
def test_choco_s_is_the_mixed_estimates(codec: str) -> None:
    def watch(session: Session, model: Quadratic) -> tuple[Tensor, Tensor]:
        state = session.algorithm_state()[0]
        return state["s"].clone(), state["hat"].clone()

    run = simulate("choco", 5, codec, steps=12, watch=watch)
    W = make_topology("ring", 5).at(1).W
    for rows in zip(*run.watched, strict=True):
        s, hat = (torch.stack(column).double().numpy() for column in zip(*rows, strict=True))
        assert_close(s, W @ hat, 1e-6)


# -- ECD's estimates ----------------------------------------------------------------------------------------


def test_ecd_with_identity_estimates_x() -> None:
    def watch(session: Session, model: Quadratic) -> float:
        estimate = session.algorithm_state()[0]["hat"][session.rank]
        return float((estimate - model.flat()).abs().max() / model.flat().abs().max())

    assert max(itertools.chain(*simulate("ecd", 5, steps=60, watch=watch).watched)) < 3e-6


@dataclass(frozen=True)
class Additive(Compressor):
    """C(v) = v + N(0, variance), independent of v."""

    unbiased: ClassVar[bool] = True
    relative_noise: ClassVar[bool] = False
    variance: float = 1.0

    def max_bytes(self, n: int) -> int:
        return 4 * n

    def encode(self, x: Tensor, key: int) -> Tensor:
        generator = torch.Generator().manual_seed(key % 2**63)
        return (x + self.variance**0.5 * torch.randn(x.shape, generator=generator)).view(torch.uint8)

    def decode(self, payload: Tensor, n: int) -> Tensor:
        return payload.view(torch.float32).clone()


def test_ecd_noise_dies_out_as_theory_says() -> None:
    """V_{t+1} = (1 − 2/t)² V_t + 4 s/t², on 8 nodes × 2,000 coordinates (sd of such a variance: 1.1 %)."""
    s, rounds = 1e-4, 40

    def node() -> list[Tensor]:
        model = torch.nn.Linear(2000, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        session = gossip.join(model, optimizer, algorithm="ecd", compressor=Additive(variance=s))
        errors = []
        for k in range(rounds):
            optimizer.zero_grad()
            model(torch.randn(1, 2000, generator=torch.Generator().manual_seed(k))).sum().backward()
            optimizer.step()
            estimate = session.algorithm_state()[0]["hat"][session.rank]
            errors.append(estimate - model.weight.detach().reshape(-1))
        session.finish()
        return errors

    errors = torch.stack([torch.stack(e) for e in gossip.launch(node, 8)]).double()
    measured = errors.square().mean(dim=(0, 2))
    V = 0.0
    for t in range(1, rounds + 1):
        V = (1 - 2 / t) ** 2 * V + 4 * s / t**2
        assert abs(float(measured[t - 1]) / V - 1) < 5 * (2 / (8 * 2000)) ** 0.5
    assert abs(rounds * V / (4 * s / 3) - 1) < 0.1


# -- the average --------------------------------------------------------------------------------------------


def train_on_slopes(spec: str, codec: str, n: int = 5, steps: int = 20) -> tuple[oracle.Array, oracle.Array]:
    """On linear losses, every u is known: the mean of x, and where Σ mean u puts it, [steps, D]."""

    def node() -> list[Tensor]:
        model, optimizer = start(decay=0.0)
        session = gossip.join(model, optimizer, algorithm=spec, compressor=codec)
        xs = [model.flat()]
        for k in range(steps):
            optimizer.zero_grad()
            model(torch.zeros(D), slopes(k)[session.rank]).backward()
            optimizer.step()
            xs.append(model.flat())
        session.finish()
        return xs

    def slopes(k: int) -> Tensor:
        return torch.randn(n, D, generator=torch.Generator().manual_seed(k))

    X = torch.stack([torch.stack(x) for x in gossip.launch(node, n)]).double().mean(dim=0).numpy()
    m, mean, expected = np.zeros(D), X[0], []
    for k in range(steps):
        m = MOMENTUM * m - slopes(k).double().numpy().mean(axis=0)
        mean = mean - LR * m
        expected.append(mean)
    return X[1:], np.stack(expected)


@pytest.mark.parametrize("codec", ("identity", *LOSSY))
@pytest.mark.parametrize("spec", ("choco", "deepsqueeze"))
def test_error_feedback_keeps_the_average(spec: str, codec: str) -> None:
    mean, expected = train_on_slopes(spec, codec)
    assert_close(mean, expected, 2e-6)


@pytest.mark.parametrize("spec", EXACT)
def test_exact_methods_keep_the_average(spec: str) -> None:
    mean, expected = train_on_slopes(spec, "identity")
    assert_close(mean, expected, 2e-6)


@pytest.mark.parametrize("spec", ("naive", "dcd"))
def test_others_lose_the_average_with_a_biased_codec(spec: str) -> None:
    mean, expected = train_on_slopes(spec, "sign")
    assert np.abs(mean - expected).max() > 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("codec", CODECS)
def test_choco_reaches_consensus_with_the_default_gamma(codec: str) -> None:
    """Once the optimizer stands still the nodes come together, whatever the codec."""

    def node() -> tuple[float, float]:
        model, optimizer = start(momentum=0.0)
        session = gossip.join(model, optimizer, algorithm="choco", compressor=codec)
        loop(session, model, optimizer, range(10))
        before = session.consensus_distance()
        optimizer.param_groups[0]["lr"] = 0.0
        loop(session, model, optimizer, range(200))
        after = session.consensus_distance()
        session.finish()
        return before, after

    before, after = gossip.launch(node, 3)[0]
    assert after < 0.5 * before


# -- relations between methods ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("spec", ("dcd", "ecd", "naive"))
def test_with_identity_they_are_dpsgd(spec: str, n: int) -> None:
    assert_close(simulate(spec, n).X, simulate("dpsgd", n).X)


def plain_sgd(rank: int, n: int, steps: int) -> np.ndarray[Any, Any]:
    torch.manual_seed(0)
    model = Quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=1e-2)
    xs = [model.flat()]
    for k in range(steps):
        optimizer.zero_grad()
        model(curvature(n)[rank], slope(n, k)[rank]).backward()
        optimizer.step()
        xs.append(model.flat())
    return torch.stack(xs).numpy()


@pytest.mark.parametrize("codec", ("identity", "qsgd:bits=4,block=16", "topk:ratio=0.25"))
@pytest.mark.parametrize("spec", (*(s for s in EXACT if s != "plump"), "naive", "choco", "deepsqueeze"))
def test_one_node_is_plain_sgd_bit_for_bit(spec: str, codec: str) -> None:
    run = simulate(spec, 1, codec_for(spec, codec))
    np.testing.assert_array_equal(run.X[:, 0], plain_sgd(0, 1, 24))


@pytest.mark.parametrize("spec", ("dcd", "ecd", "plump", SLIM))
def test_one_node_is_plain_sgd_to_rounding(spec: str) -> None:
    assert_close(simulate(spec, 1).X[:, 0], plain_sgd(0, 1, 24))


def test_local_exchanges_nothing() -> None:
    run = simulate("local", 3)
    for rank in range(3):
        np.testing.assert_array_equal(run.X[:, rank], plain_sgd(rank, 3, 24))
        assert run.stats[rank]["bytes_sent"] == run.stats[rank]["messages_sent"] == 0


@pytest.mark.parametrize("n", SIZES)
def test_allreduce_keeps_all_nodes_bitwise_equal(n: int) -> None:
    X = simulate("allreduce", n).X
    np.testing.assert_array_equal(X, np.broadcast_to(X[:, :1], X.shape))


# -- traffic ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", (1, 3))
@pytest.mark.parametrize("codec", ("identity", "fp16", "qsgd:bits=8", "qsgd:bits=4,block=16", "sign"))
@pytest.mark.parametrize("spec", (*COMPRESSED, "dpsgd", "dpsgd:order=atc"))
def test_bytes_are_message_times_neighbours_times_rounds(spec: str, codec: str, every: int) -> None:
    steps, n = 9, 5
    topology = "star"
    run = simulate(with_every(spec, every), n, codec, steps=steps, topology=topology)
    message = make_codec(codec).max_bytes(D) if make_algorithm(spec).uses_compressor else 4 * D
    for rank, stats in enumerate(run.stats):
        sent = len(make_topology(topology, n).at(1).out_neighbors(rank)) * steps // every
        assert stats["messages_sent"] == sent
        assert stats["bytes_sent"] == sent * message


@pytest.mark.parametrize("n", SIZES)
def test_allreduce_counts_a_ring(n: int) -> None:
    for stats in simulate("allreduce", n, steps=6).stats:
        assert stats["bytes_sent"] == 6 * (2 * (n - 1) * 4 * D // n)


# -- the prefix, and resuming -------------------------------------------------------------------------------


def copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@pytest.mark.parametrize("spec", ALGORITHMS)
def test_nothing_changes_before_the_first_yield(spec: str) -> None:
    """Checked in the middle of a run: the next round's prefix can be dropped and run again."""
    method: Algorithm = make_algorithm(spec)

    def watch(session: Session, model: Quadratic) -> bool:
        session.wait()
        (lane,) = session._engine.lanes
        node, posted = lane.node, list[bytes]()
        post, t, sends = node.outbox.post, node.t, node._sends
        node.outbox.post = lambda payload, *_, **__: posted.append(bytes(payload.tolist()))  # type: ignore[method-assign]
        x, state, messages = lane.x.clone(), copied(lane.state), []
        for _ in range(2):
            node.t, node._sends = lane.t + 1, 0
            steps = method.step(lane.x, lane.state, node)
            next(steps)
            steps.close()
            messages.append(list(posted))
            posted.clear()
        node.outbox.post, node.t, node._sends = post, t, sends  # type: ignore[method-assign]
        return equal(lane.x, x) and equal(lane.state, state) and messages[0] == messages[1]

    run = simulate(spec, 3, codec_for(spec, "qsgd:bits=8"), steps=3, watch=watch)
    assert all(itertools.chain(*run.watched))


def resumed(spec: str, codec: str, before: int, after: int, topology: str = "ring") -> list[Tensor]:
    """Final x by rank of a run that is saved after `before` steps, and continued by new sessions."""

    def first() -> bytes:
        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm=spec, compressor=codec, topology=topology)
        loop(session, model, optimizer, range(before))
        file = io.BytesIO()
        torch.save([session.state_dict(), model.state_dict(), optimizer.state_dict()], file)
        loop(session, model, optimizer, range(before, before + 2))  # what is saved must not follow
        session.finish()
        return file.getvalue()

    files = gossip.launch(first, 3)

    def second() -> Tensor:
        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm=spec, compressor=codec, topology=topology)
        saved = torch.load(io.BytesIO(files[session.rank]), weights_only=True)
        model.load_state_dict(saved[1])
        optimizer.load_state_dict(saved[2])
        session.load_state_dict(saved[0])
        loop(session, model, optimizer, range(before, before + after))
        session.finish()
        return model.flat()

    return gossip.launch(second, 3)


def combinations() -> Iterator[tuple[str, str]]:
    for spec, method in ALGORITHMS.items():
        for codec in CODECS if method.uses_compressor else ("identity",):
            yield spec, codec


@pytest.mark.parametrize(("spec", "codec"), [*combinations(), (SLIM, "qsgd:bits=8")])
def test_resuming_changes_nothing(spec: str, codec: str) -> None:
    unbroken = simulate(spec, 3, codec, steps=10).last
    np.testing.assert_array_equal(torch.stack(resumed(spec, codec, 5, 5)).numpy(), unbroken)


@pytest.mark.parametrize("spec", (*PARAMETER, SLIM))
def test_resuming_between_two_exchanges_changes_nothing(spec: str) -> None:
    spec, codec = with_every(spec, 3), codec_for(spec, "qsgd:bits=8")
    unbroken = simulate(spec, 3, codec, steps=10).last
    np.testing.assert_array_equal(torch.stack(resumed(spec, codec, 5, 5)).numpy(), unbroken)
