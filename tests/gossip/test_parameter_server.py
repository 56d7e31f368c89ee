"""Plump-DP and Slim-DP: relations to other methods, agreement with the oracle, the bytes, stale keys."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossip
from compressors import PayloadError
from compressors.randk import random_indices
from gossip.algorithms import SlimDP, slim, slim_exchange, theory
from gossip.algorithms.slim_exchange import CORE, PULL, PUSH, explorer
from gossip.effects import Expect, Node, message_key
from gossip.errors import StaleKeysError, UsageError
from gossip.flat import Segment
from gossip.session import Session
from gossip.spec import make_algorithm, make_codec, make_topology
from gossip.stats import Stats
from tests import oracle
from tests.quadratics import LR, MOMENTUM, D, Quadratic, assert_close, simulate, start, updates

SIZES = (1, 2, 3, 5, 8)
LITERAL = "slim:alpha=0.4,beta=0.2,q=3"
VARIANTS = (
    LITERAL,
    f"{LITERAL},residual=keep",
    f"{LITERAL},keys=seed,eta=per-coordinate",
    "slim:alpha=0.5,beta=0,q=4,residual=keep,eta=per-coordinate,c=0.3",
    "slim:alpha=0.3,beta=0.3,q=2,c=3,every=2",
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def slim_method(spec: str) -> SlimDP:
    method = make_algorithm(spec)
    assert isinstance(method, SlimDP)
    return method


# -- what the methods are equal to --------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
def test_plump_is_allreduce_step_for_step(n: int) -> None:
    """Momentum and weight decay are linear, so the mean of the steps is the step along the mean."""
    plump = simulate("plump", n, steps=12).X
    np.testing.assert_array_equal(plump, np.broadcast_to(plump[:, :1], plump.shape))
    assert_close(plump, simulate("allreduce", n, steps=12).X, 2e-6)


EVERYTHING = ("beta=0.5,q=3", "beta=1,q=2,residual=keep,keys=seed,eta=per-coordinate")


@pytest.mark.parametrize(("n", "options"), [*((n, EVERYTHING[0]) for n in SIZES), (3, EVERYTHING[1])])
def test_slim_that_exchanges_everything_is_plump(n: int, options: str) -> None:
    everything = simulate(f"slim:alpha=1,{options},every=2", n, steps=10)
    np.testing.assert_array_equal(everything.X, simulate("plump:every=2", n, steps=10).X)


@pytest.mark.parametrize("options", ["", ",residual=keep,eta=per-coordinate"])
def test_keys_from_the_seed_are_the_keys_sent(options: str) -> None:
    sent = simulate(f"{LITERAL}{options}", 5, "qsgd:bits=8", steps=8)
    seed = simulate(f"{LITERAL}{options},keys=seed", 5, "qsgd:bits=8", steps=8)
    np.testing.assert_array_equal(sent.X, seed.X)


def test_one_node_alone_loses_what_it_drops() -> None:
    """Kept, it is plain SGD (test_laws.py)."""
    dropping, plain = simulate(LITERAL, 1).last, simulate("local", 1).last
    assert np.abs(dropping - plain).max() > 0.1 * np.abs(plain).max()


# -- agreement with the oracle ------------------------------------------------------------------------------


def check_against_oracle(spec: str, n: int, codec: str = "identity", steps: int = 14) -> None:
    run, method = simulate(spec, n, codec, steps=steps), slim_method(spec)
    size = float(np.abs(run.X).max())

    def C(v: oracle.Array, t: int, i: int, m: int) -> oracle.Array:
        given, decoded = run.log[message_key(0, i, t, 0, m)]
        assert_close(given, v, scale=size)
        return decoded.double().numpy()

    def draw(t: int, i: int, k: int, size: int, count: int) -> Any:
        return random_indices(size, count, message_key(0, i, t, 0, k, slim_exchange.EXPLORER)).numpy()

    feedback = theory.scale(make_codec(codec)) if method.residual == "keep" else 1.0
    rounds = oracle.slim(
        run.X[0].astype(np.float64),
        lambda t: np.eye(n),
        updates(n, method.every),
        C,
        draw=draw,
        scale=feedback,
        **{name: getattr(method, name) for name in ("alpha", "beta", "q", "residual", "eta", "c")},
    )
    for x, expected in zip(run.X[method.every :: method.every], rounds, strict=False):
        assert_close(x, expected)


@pytest.mark.parametrize(
    ("spec", "n"), [*itertools.product(VARIANTS[:2], SIZES), *((spec, 3) for spec in VARIANTS[2:])]
)
def test_slim_follows_the_oracle(spec: str, n: int) -> None:
    check_against_oracle(spec, n)


@pytest.mark.parametrize("codec", ["qsgd:bits=8", "qsgd:bits=2,block=4", "sign", "randk:ratio=0.5"])
@pytest.mark.parametrize("spec", VARIANTS[:2])
def test_slim_follows_the_oracle_with_other_codecs(spec: str, codec: str) -> None:
    check_against_oracle(spec, 3, codec, steps=8)


# -- laws ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", VARIANTS[:4])
def test_nodes_agree_on_the_core(spec: str, n: int = 4) -> None:
    """All hold the same keys, and on them, after every round, bitwise what their owner holds."""

    def watch(session: Session, model: Quadratic) -> tuple[dict[int, Tensor], Tensor, Tensor]:
        state = session.algorithm_state()[0]
        return {k: keys.clone() for k, keys in state["core"].items()}, state["w"].clone(), model.flat()

    run, method = simulate(spec, n, steps=9, watch=watch), slim_method(spec)
    shards = method.shards(D, n, make_codec("identity"))
    changes, before = 0, run.watched[0][0][0]
    for t, nodes in enumerate(zip(*run.watched, strict=True), start=1):
        for core, _, x in nodes:
            for k, s in shards.items():
                assert torch.equal(core[k], nodes[0][0][k])
                if not method.is_full(t):  # else it has just been chosen, for the next round
                    assert torch.equal(x[s.at][core[k]], nodes[k][1][core[k]])
        changes += any(not torch.equal(before[k], nodes[0][0][k]) for k in shards)
        before = nodes[0][0]
    assert bool(changes) == (method.beta > 0)


@pytest.mark.parametrize("codec", ["identity", "qsgd:bits=4,block=16", "sign", "topk", "randk:ratio=0.25"])
def test_keeping_loses_nothing(codec: str, n: int = 4, steps: int = 14) -> None:
    """On linear losses every u is known: n w̄ + Σ e moves by Σ u, whatever the codec loses."""

    def slopes(k: int) -> Tensor:
        return torch.randn(n, D, generator=torch.Generator().manual_seed(k))

    def node() -> tuple[Tensor, Tensor, Tensor]:
        model, optimizer = start(decay=0.0)
        session = gossip.join(model, optimizer, algorithm=f"{LITERAL},residual=keep", compressor=codec)
        first = model.flat()
        for k in range(steps):
            optimizer.zero_grad()
            model(torch.zeros(D), slopes(k)[session.rank]).backward()
            optimizer.step()
        state = session.algorithm_state()[0]
        session.finish()
        return first, state["w"], state["e"]

    first, shards, errors = zip(*gossip.launch(node, n), strict=True)
    m, total = np.zeros(D), np.zeros(D)
    for k in range(steps):
        m = MOMENTUM * m - slopes(k).double().numpy().sum(axis=0)
        total -= LR * m
    moved = n * (torch.cat(shards).double() - first[0].double()) + torch.stack(errors).double().sum(dim=0)
    assert_close(moved, total, 5e-6)


def test_explorers_are_uniform_subsets_outside_the_core() -> None:
    size, count, draws = 12, 3, 2000
    core = torch.tensor([0, 1, 5, 8, 11])
    outside = np.setdiff1d(np.arange(size), core.numpy())
    chosen = np.zeros((size, size))
    for key in range(draws):
        keys = explorer(core, size, count, key).numpy()
        assert keys.size == count and (np.diff(keys) > 0).all() and np.isin(keys, outside).all()
        chosen[np.ix_(keys, keys)] += 1
    single = count / outside.size
    pair = single * (count - 1) / (outside.size - 1)
    rows = chosen[np.ix_(outside, outside)]
    for expected, found in ((single, np.diag(rows)), (pair, rows[np.triu_indices(outside.size, 1)])):
        sd = (draws * expected * (1 - expected)) ** 0.5
        assert np.abs(found - draws * expected).max() < 4.5 * sd


@pytest.mark.parametrize(("size", "count"), [(0, 0), (3, 0), (8, 5)])
def test_explorers_at_the_edges(size: int, count: int) -> None:
    core = torch.arange(0, size, 3)
    everything = torch.cat([core, explorer(core, size, count, 1)]).sort().values
    assert count == 0 or torch.equal(everything, torch.arange(size))


def test_explorers_differ_by_worker_and_round() -> None:
    """No two workers of an owner, and no two rounds or buckets, draw the same keys."""
    found = set()
    for worker, t, bucket in itertools.product(range(3), range(1, 6), range(2)):
        key = message_key(0, worker, t, bucket, 1, slim_exchange.EXPLORER)
        found.add(tuple(explorer(torch.empty(0, dtype=torch.int64), 1000, 100, key).tolist()))
    assert len(found) == 3 * 5 * 2


# -- bytes --------------------------------------------------------------------------------------------------


def shares(n: int, d: int = D) -> list[int]:
    return [d * (k + 1) // n - d * k // n for k in range(n)]


@pytest.mark.parametrize("n", SIZES)
def test_plump_sends_what_a_ring_allreduce_sends(n: int, every: int = 2) -> None:
    run = simulate(f"plump:every={every}", n, steps=6)
    for rank, stats in enumerate(run.stats):
        d = shares(n)
        push, pull = 4 * (D - d[rank]), (n - 1) * 4 * d[rank]
        assert stats["bytes_sent"] == 6 // every * (push + pull)
        assert stats["messages_sent"] == 6 // every * 2 * (n - 1)
        assert abs(push + pull - 2 * (n - 1) * 4 * D / n) <= 4 * n


def formula(method: SlimDP, rank: int, n: int, d: int, full: bool, m: Any) -> int:
    """Bytes that a rank sends in a round, written from the documentation; m(v): of a message of v values."""
    d_k = shares(n, d)
    a = [max(1, round(method.alpha * v)) for v in d_k]
    b = [round(method.beta * v) for v in d_k]
    keys = [4 * (x - y) * (method.keys == "sent") for x, y in zip(a, b, strict=True)]
    push = sum(4 + keys[k] + m(d_k[k] if full else a[k]) for k in range(n) if k != rank)
    pull = (n - 1) * (4 + m(a[rank]))
    return push + pull + full * (n - 1) * (4 + 4 * b[rank])


@pytest.mark.parametrize(
    ("n", "keys", "codec"),
    [*((n, "sent", "identity") for n in SIZES), (3, "seed", "qsgd:bits=8"), (3, "sent", "fp16")],
)
def test_slim_sends_what_the_formula_says(n: int, keys: str, codec: str) -> None:
    method = slim_method(f"{LITERAL},keys={keys},every=2")
    m = make_codec(codec).max_bytes
    run = simulate(method, n, codec, steps=8)  # 4 rounds, of which the third is full
    for rank, stats in enumerate(run.stats):
        usual, full = (formula(method, rank, n, D, full, m) for full in (False, True))
        assert stats["bytes_sent"] == 3 * usual + full
        assert stats["messages_sent"] == (n - 1) * (4 * 2 + 1)


PAPER = {"vgg16": (138_357_544, 0.2, 0.1, 0.30), "googlenet": (6_998_552, 0.3, 0.15, 0.45)}
"""Parameters (VGG-16: configuration D of arXiv 1409.1556; GoogLeNet: Caffe's bvlc_googlenet, without its
auxiliary classifiers), alpha, beta, and the paper's words per direction, as a share of the parameters."""


def received(method: SlimDP, d: int, rank: int, n: int, t: int) -> dict[tuple[int, int], int]:
    """By sender and slot, the bytes that the method says it will get; nothing of that size is made."""

    class Nowhere:
        size = n

    Nowhere.rank = rank  # type: ignore[attr-defined]
    node = Node(
        transport=Nowhere(),  # type: ignore[arg-type]
        outbox=None,  # type: ignore[arg-type]
        topology=make_topology("complete", n),
        compressor=make_codec("identity"),
        stats=Stats(),
        segments=(Segment("w", 0, (d,)),),
        device=torch.device("cpu"),
        bucket=0,
        seed=0,
        tag=0,
        channel=None,
        label="",
    )
    node.t = t

    def size(e: Expect) -> int:
        assert e.codec is not None and e.size is not None and e.codec.fixed_size
        return e.codec.max_bytes(e.size)

    return {(e.frm, e.slot): size(e) for e in method.expects(node)}


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("net", PAPER)
def test_the_papers_networks_by_declaration(net: str, n: int) -> None:
    """Shares of the words of the whole model per direction, own shard included, as the paper counts."""
    d, alpha, beta, words = PAPER[net]
    for keys, pushed in (("sent", words), ("seed", alpha)):
        method = SlimDP(alpha=alpha, beta=beta, q=50, keys=keys)  # type: ignore[arg-type]
        for t, full in ((49, False), (50, True)):
            every = [received(method, d, rank, n, t) for rank in range(n)]
            slots = {
                slot: sum(size for row in every for (_, s), size in row.items() if s == slot)
                for slot in (PUSH, PULL, CORE)
            }
            in_words = {slot: size / ((n - 1) * 4 * d) for slot, size in slots.items()}
            overhead = n * (1 + 2) / d  # a signature, and shares rounded to whole values, by message
            expected = 1 + (alpha - beta) * (keys == "sent") if full else pushed
            assert in_words[PUSH] == pytest.approx(expected, abs=overhead)
            assert in_words[PULL] == pytest.approx(alpha, abs=overhead)
            assert in_words[CORE] == pytest.approx(beta if full else 0, abs=overhead)
            for rank in range(n):
                sent = sum(size for row in every for (frm, _), size in row.items() if frm == rank)
                assert sent == formula(method, rank, n, d, full, lambda v: 4 * v)
    assert words == pytest.approx(2 * alpha - beta)


@pytest.mark.parametrize("net", ["googlenet", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_the_papers_networks_on_the_wire(net: str) -> None:
    """As many parameters as the network has, no training: two exchanges of two nodes, the second full."""
    d, alpha, beta, _ = PAPER[net]
    method, n = SlimDP(alpha=alpha, beta=beta, q=2), 2

    def node() -> list[int]:
        model = nn.Module()
        model.w = nn.Parameter(torch.zeros(d))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session, sent = gossip.join(model, optimizer, algorithm=method), list[int]()
        for _ in range(2):
            optimizer.step()
            session.wait()
            sent.append(session.world.bytes_sent - sum(sent))
        session.finish()
        return sent

    for rank, sent in enumerate(gossip.launch(node, n)):
        assert sent == [formula(method, rank, n, d, full, lambda v: 4 * v) for full in (False, True)]


# -- wrong lists, wrong bytes, wrong options ----------------------------------------------------------------


@pytest.mark.parametrize(("keys", "who"), [("sent", 0), ("seed", 0), ("sent", 1)])
def test_a_stale_list_of_keys_is_an_error(keys: str, who: int) -> None:
    """Node 1 goes back to the list of before the last full push: of node 0's shard, or of its own."""
    spec = f"{LITERAL},keys={keys}"

    def watch(session: Session, model: Quadratic) -> None:
        state = session.algorithm_state()[0]
        if session.rank == 1 and session.round == 2:
            kept.update(core=state["core"][who].clone(), signature=state["signature"][who].clone())
        if session.rank == 1 and session.round == 4:
            assert not torch.equal(kept["core"], state["core"][who])
            for name, value in kept.items():
                state[name][who].copy_(value)

    kept: dict[str, Tensor] = {}
    with pytest.raises(StaleKeysError, match=f"round 5, bucket 0: .* another core of rank {who}'s"):
        simulate(spec, 3, steps=5, watch=watch)


def test_keys_that_are_not_the_signed_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim_exchange, "signature", lambda keys: time.perf_counter_ns() & 0xFFFFFFFF)
    with pytest.raises(PayloadError, match="not those it has signed"):
        simulate(LITERAL, 2, steps=3)


@pytest.mark.parametrize(
    "spec",
    ["slim:alpha=0", "slim:alpha=1.1", "slim:alpha=0.3,beta=0.4", "slim:beta=-0.1", "slim:q=0", "slim:c=-1"],
)
def test_options_out_of_range_are_usage_errors(spec: str) -> None:
    with pytest.raises(UsageError, match=spec.rpartition(":")[2].rpartition(",")[2]):
        make_algorithm(spec)


def test_coarse_codecs_are_warned_about() -> None:
    ring = make_topology("ring", 4)
    for codec, bad in (("identity", 0), ("fp16", 0), ("qsgd:bits=8", 0), ("qsgd:bits=4", 1), ("topk", 1)):
        texts = list(make_algorithm("slim").check(ring, make_codec(codec)))
        assert len(texts) == bad and all("get the parameters through" in text for text in texts)


@pytest.mark.parametrize("residual", ["drop", "keep"])
@pytest.mark.parametrize("eta", ["mean", "per-coordinate"])
def test_every_update_in_full_is_too_much(residual: str, eta: str) -> None:
    method = make_algorithm(f"slim:residual={residual},eta={eta}")
    texts = list(method.check(make_topology("ring", 4), make_codec("identity")))
    assert len(texts) == (residual == "keep" and eta == "per-coordinate")
    assert all("up to n times their mean" in text for text in texts)


# -- books --------------------------------------------------------------------------------------------------


def test_selecting_the_core_is_in_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = slim.largest

    def slowly(*args: Any) -> Tensor:
        time.sleep(0.02)
        return largest(*args)

    monkeypatch.setattr(slim, "largest", slowly)
    for stats in simulate(LITERAL, 2, steps=3).stats:
        assert sum(stats["encode_ms"]) >= 20


def test_the_notes_tell_the_bytes() -> None:
    def node() -> tuple[str, ...]:
        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm=LITERAL)
        session.finish()
        return session.notes

    method = slim_method(LITERAL)
    usual, full = (formula(method, 0, 3, D, full, lambda v: 4 * v) for full in (False, True))
    assert gossip.launch(node, 3)[0] == (
        f"slim: node 0 sends {usual} bytes per exchange, {full} in one of 3 (full push)",
    )
