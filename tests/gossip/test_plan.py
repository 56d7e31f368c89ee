"""The planner: its bytes are the transport's, its link model what it was fitted to, its ranking sound."""

from __future__ import annotations

import argparse
import errno
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gossip
from gossip import __main__ as commands
from gossip import transport, units
from gossip.algorithms import ALGORITHMS
from gossip.errors import UsageError, WriteError
from gossip.plan import cost, link, ranking, trips
from gossip.plan.cost import Exchange, Link
from gossip.spec import make_algorithm, make_codec, make_topology
from gossip.transport import ring


def model() -> nn.Module:
    """120 values, divisible by 2, 3 and 5, in tensors of two dimensions and of one."""
    return nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 3), nn.Linear(3, 1), nn.PReLU())


SEPARATE = ("dgc", "gradient-dropping", "p3")
"""Two have an option here; p3 is not planned (test_bytes.py has its bytes)."""


def segments(of: nn.Module) -> trips.Segments:
    (one,) = ranking.cut(of, make_algorithm("dpsgd"))
    return one


# -- bytes -------------------------------------------------------------------------------------------------


def counted(algorithm: str, codec: str, topology: str, n: int) -> list[int]:
    """What the transport counts in one training step, by rank."""

    def node() -> int:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session = gossip.join(net, optimizer, algorithm=algorithm, compressor=codec, topology=topology)
        net(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        session.finish()
        return gossip.world().bytes_sent

    return gossip.launch(node, n)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("algorithm", "codec", "topology"),
    [
        *((name, "qsgd:bits=4", "ring") for name in ALGORITHMS if name not in SEPARATE),
        ("dgc:threshold=exact", "identity", "ring"),
        ("gradient-dropping:ratio=0.1,threshold=exact", "identity", "ring"),
        ("dpsgd", "identity", "star"),
        ("dcd", "sign", "complete"),
        ("dpsgd", "identity", "one-peer"),
        ("choco", "topk:ratio=0.1", "chain"),
        ("dcd", "qsgd:bits=8", "tree"),
        ("qsgd:gather=scatter", "qsgd:bits=8", "ring"),
        ("qsgd:gather=all", "qsgd:bits=8", "ring"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_planners_bytes_are_what_the_transport_counts(
    algorithm: str, codec: str, topology: str, n: int
) -> None:
    method = make_algorithm(algorithm)
    sent = counted(algorithm, codec, topology, n)
    one = trips.of_round(method, make_topology(topology, n), make_codec(codec), segments(model()), t=1)
    # The transport rounds every mean down to whole bytes; run lengths are even shorter than the bound here.
    assert 0 <= one.sent - max(sent) <= 2
    busiest = sum(trip.busiest for chain in one.chains for trip in chain)
    assert (busiest > 0) == (max(sent) > 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 12, 48, 64])
@pytest.mark.parametrize("size", [0, 1000, 65535, 65536, 100_000, 1_000_000])
def test_an_all_reduce_brings_everything_to_everybody(n: int, size: int) -> None:
    """In k trips a value of all nodes can come together from 2^k of them at most; it takes one more back."""
    chain = trips.mean_trips(size, n)
    if n == 1 or size == 0:
        assert chain == ()
        return
    assert 2 ** (len(chain) - 1) >= n
    total = sum(trip.busiest for trip in chain)
    if ring.serves(size, n):
        assert len(chain) == 2 * (n - 1) and total == pytest.approx(2 * (n - 1) / n * size)
        return
    if n < 4 or size < trips.TREE_BELOW:  # up and down a tree
        assert len(chain) == 2 * math.ceil(math.log2(n)) and total == len(chain) * size
    assert len(chain) <= 2 * math.ceil(math.log2(n)) + 1
    assert total >= 2 * (n - 1) / n * size - 1e-6  # what every node must at least send or receive
    if n >= 4 and size >= trips.TREE_BELOW and n & (n - 1) == 0:
        assert total == pytest.approx(2 * (n - 1) / n * size)


# -- the link model ----------------------------------------------------------------------------------------

LINKS = [
    Link(1e7, 5e-3, goodput=0.8, overhead=1e-3),
    Link(1.4e9, 0.13e-3, goodput=0.95, overhead=2e-4),
    Link(1e8, 20e-3, goodput=0.5, overhead=0.0, eager=65536),
]


def exchange(on: Link, size: int, degree: int) -> Exchange:
    """What the model says that an exchange takes."""
    one = trips.Round(((trips.Trip(degree * size, size),),), degree * size)
    return Exchange(size, degree, on.busy(one) + on.idle(one))


@pytest.mark.parametrize("truth", LINKS)
def test_fitting_two_exchanges_finds_the_constants(truth: Link) -> None:
    small, large = exchange(truth, 100, 2), exchange(truth, 60_000, 2)
    fitted = Link.fit(truth.bandwidth, truth.latency, small, large)
    assert fitted.goodput == pytest.approx(truth.goodput) and fitted.measured
    assert fitted.overhead == pytest.approx(truth.overhead, abs=1e-9)
    alone = Link.measure(small, large)  # neither rate nor latency known
    for size in (1000, 50_000):
        assert exchange(alone, size, 4).seconds == pytest.approx(exchange(truth, size, 4).seconds)


def test_a_message_above_the_eager_limit_goes_three_ways() -> None:
    on = Link(1e9, 10e-3, goodput=1.0, overhead=0.0, eager=1000)
    assert exchange(on, 1001, 1).seconds - exchange(on, 1000, 1).seconds == pytest.approx(20e-3, rel=1e-3)


def test_bbr_spreads_a_burst_over_a_third_of_a_round_trip() -> None:
    """As long as the link could send it faster, and the burst is longer than the first window."""
    plain = Link(1e9, 20e-3, goodput=1.0, overhead=0.0)
    bbr = replace(plain, ramp=cost.RAMP["bbr"])
    assert exchange(bbr, 100_000, 2).seconds == pytest.approx(20e-3 + 40e-3 * math.log(2) / 2)
    for size in (10_000, 4_000_000):
        assert exchange(bbr, size, 2).seconds == exchange(plain, size, 2).seconds


def test_exchanges_that_tell_no_rate_are_refused() -> None:
    for small, large in (
        (Exchange(100, 2, 0.1), Exchange(100, 2, 0.2)),
        (Exchange(100, 2, 0.2), Exchange(10_000, 2, 0.1)),
    ):
        with pytest.raises(UsageError):
            Link.measure(small, large)


# -- the time of a step ------------------------------------------------------------------------------------


def times(algorithm: str, on: Link, compute: float, overlap: bool, buckets: int = 1) -> cost.Step:
    method, codec = make_algorithm(algorithm), make_codec("identity")
    parts = [segments(nn.Linear(1000, 10 * (k + 1), bias=False)) for k in range(buckets)]
    rounds = [trips.of_round(method, make_topology("ring", 4), codec, part, t=1) for part in parts]
    sizes = [sum(s.size for s in part) for part in parts]
    return cost.step(method, rounds, sizes, on, compute, 0.0, overlap)


HIDDEN = ("dpsgd", "dcd", "ecd", "choco")
NOT_HIDDEN = ("dpsgd:order=atc", "deepsqueeze")


@pytest.mark.parametrize("compute", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("algorithm", [*HIDDEN, *NOT_HIDDEN, "allreduce", "local"])
def test_overlap_hides_at_most_the_computing(algorithm: str, compute: float) -> None:
    on = LINKS[0]
    off, with_overlap = (times(algorithm, on, compute, overlap) for overlap in (False, True))
    assert off.total == pytest.approx(compute + off.exchange) and off.exposed == off.exchange
    assert max(compute, with_overlap.exchange) <= with_overlap.total + 1e-12
    assert with_overlap.total <= off.total
    if algorithm in HIDDEN:
        assert with_overlap.total == pytest.approx(max(compute, off.exchange))
    elif algorithm in NOT_HIDDEN:
        assert with_overlap.total == off.total


@pytest.mark.parametrize("rate", [1e5, 1e7, 1e9])
def test_buckets_of_gradients_travel_while_backward_makes_the_next(rate: float) -> None:
    """Against a simulation: a bucket goes when its gradients are there and the last one's bytes are gone."""
    on, compute, sizes = Link(rate, 1e-3), 0.3, [10_000, 20_000, 30_000]
    predicted = times("allreduce", on, compute, True, buckets=3)
    chains = [trips.mean_trips(4 * size, 4) for size in sizes]
    ready = compute / 3 + np.cumsum(sizes) / sum(sizes) * compute * 2 / 3
    clock = end = 0.0
    for start, chain in zip(ready, chains, strict=True):
        clock = max(clock, float(start))
        for trip in chain:
            clock += 8 * trip.busiest / (on.goodput * rate)
        end = max(end, clock + len(chain) * (on.latency + on.overhead))
    assert predicted.total == pytest.approx(max(end, compute))


def test_a_round_every_h_steps_costs_an_hth() -> None:
    each, every = (times(spec, LINKS[0], 0.0, False) for spec in ("dcd", "dcd:every=4"))
    assert every.total == pytest.approx(each.total / 4)


def test_a_round_every_h_steps_has_h_steps_to_hide_behind() -> None:
    exchange = times("dpsgd", LINKS[0], 0.0, False).exchange
    c = exchange / 3
    assert times("dpsgd:every=4", LINKS[0], c, True).exposed == 0
    assert times("dpsgd:every=2", LINKS[0], c, True).exposed == pytest.approx((exchange - 2 * c) / 2)


# -- the ranking -------------------------------------------------------------------------------------------


def test_a_single_node_sends_nothing() -> None:
    plans = ranking.rank(model(), 1, LINKS[0], compute=1e-3, topologies=["ring"])
    assert {plan.algorithm for plan in plans} >= {"allreduce", "dgc", "dcd"}
    assert all(plan.sent == 0 for plan in plans)


def test_the_ranking_is_by_time_and_puts_last_what_theory_warns_about() -> None:
    plans = ranking.rank(model(), 8, LINKS[0], compute=1e-3)
    assert [bool(plan.warnings) for plan in plans] == sorted(bool(plan.warnings) for plan in plans)
    for first, second in pairwise(plans):
        if bool(first.warnings) == bool(second.warnings):
            assert first.time.total <= ranking.ALIKE * second.time.total
    for plan in plans:
        method, codec = make_algorithm(plan.algorithm), make_codec(plan.compressor or "identity")
        graph = make_topology(plan.topology or "ring", 8)
        assert list(plan.warnings) == list(method.check(graph, codec)), plan.name
    assert any(
        plan.algorithm == "dcd" and "theory asks" in plan.warnings[0] for plan in plans if plan.warnings
    )
    assert {plan.algorithm for plan in plans} == set(ranking.ALGORITHMS)


@pytest.mark.filterwarnings("ignore")
def test_every_plan_is_one_that_join_accepts() -> None:
    for plan in ranking.rank(model(), 4, LINKS[0], compressors=["sign"]):
        counted(plan.algorithm, plan.compressor or "identity", plan.topology or "ring", 4)


def test_a_compressor_that_is_named_is_the_gradient_methods_too() -> None:
    named = ranking.rank(model(), 4, LINKS[0], algorithms=["qsgd", "dpsgd"], compressors=["qsgd:bits=2"])
    assert {(plan.algorithm, (plan.compressor or "")[:11]) for plan in named} == {
        ("qsgd", "qsgd:bits=2"),
        ("dpsgd", ""),
    }
    (usual,) = ranking.rank(model(), 4, LINKS[0], algorithms=["qsgd"])
    assert (usual.compressor or "").startswith("qsgd:bits=8")


@pytest.mark.parametrize("nodes", [7, 64])
def test_graphs_that_do_not_exist_are_left_out(nodes: int) -> None:
    names = {plan.topology for plan in ranking.rank(model(), nodes, LINKS[0], algorithms=["dpsgd"])}
    assert {"ring", "complete"} <= names and ("hypercube" in names) == (nodes == 64)


@pytest.mark.parametrize("spec", ["plump", "slim", "local", "allreduce"])
def test_a_method_without_a_graph_is_planned_without_one(spec: str) -> None:
    (plan,) = ranking.rank(model(), 4, LINKS[0], algorithms=[spec], compressors=["fp16"])
    assert plan.topology is None and plan.spectral_gap == 1


def test_slices_with_owners_of_their_own_are_refused() -> None:
    """A round is one busiest node's: slices of different owners have different ones."""
    with pytest.raises(UsageError, match=r"p3 is not planned: .*python -m experiments.p3_simulation"):
        ranking.rank(model(), 4, LINKS[0], algorithms=["allreduce", "p3:slice=30"])


def test_sparse_methods_say_how_dense_the_sum_can_get() -> None:
    (plan,) = ranking.rank(nn.Linear(1000, 100, bias=False), 64, LINKS[0], algorithms=["dgc:ratio=0.001"])
    assert "6.4 % of the values" in plan.notes[0]
    dense = 2 * 63 / 64 * 4 * 100_000
    assert f"{100 * plan.sent / dense:.3g} %" in plan.notes[0]


def test_a_better_network_never_costs_time() -> None:
    def ranked(on: Link) -> tuple[nn.Module, int, Link, float, list[str], list[str], list[str]]:
        return model(), 8, on, 0.0, ["allreduce", "dgc", "dcd", "powersgd"], ["ring"], ["sign", "fp16"]

    exchanges = [
        [plan.time.exchange for plan in sorted(ranking.rank(*ranked(on)), key=lambda plan: plan.name)]
        for on in (Link(1e6, 1e-3), Link(1e7, 1e-3), Link(1e7, 1e-4))
    ]
    for slower, faster in pairwise(exchanges):
        assert all(a >= b for a, b in zip(slower, faster, strict=True))


# -- units, commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("100Mbit", 1e8, "100 Mbit/s"),
        ("1.4Gbit/s", 1.4e9, "1.4 Gbit/s"),
        ("512 kbit", 512e3, "512 kbit/s"),
        ("9600bit", 9600, "9.6 kbit/s"),
    ],
)
def test_bandwidths(text: str, value: float, shown: str) -> None:
    assert units.bandwidth(text) == pytest.approx(value)
    assert units.show_bandwidth(value) == shown
    assert units.bandwidth(shown) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"), [("5ms", 5e-3), ("0.13 ms", 0.13e-3), ("2s", 2), ("70us", 7e-5), ("0", 0)]
)
def test_durations(text: str, value: float) -> None:
    assert units.duration(text) == pytest.approx(value)
    assert units.duration(units.show_duration(value)) == pytest.approx(value)


@pytest.mark.parametrize("text", ["100", "Mbit", "-1Mbit", "0Mbit", "1 parsec"])
def test_what_is_no_bandwidth(text: str) -> None:
    with pytest.raises(UsageError, match="100Mbit"):
        units.bandwidth(text)


@pytest.mark.parametrize("text", ["5", "ms", "-5ms", "5 furlongs"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="5ms"):
        units.duration(text)


def run(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["gossip", *words])
    return commands.main()


PLAN = ("plan", "--nodes", "8", "--parameters", "1e4", "--algorithm", "allreduce", "dcd", "dgc")


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    network = ("--bandwidth", "100Mbit", "--latency", "5ms")
    assert run(*PLAN, *network, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "8 nodes, 100 Mbit/s, 5 ms one way" in text and "assumed" in text and "Theory warns" in text
    run(*PLAN, *network, "--json", monkeypatch=monkeypatch)
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {plan["algorithm"] for plan in plans} == {"allreduce", "dcd", "dgc"}
    run(*PLAN, *network, "--compressor", "sign", "--topology", "ring", "--json", monkeypatch=monkeypatch)
    assert len(json.loads(capsys.readouterr().out)["plans"]) == 3


def test_a_measured_link_takes_the_place_of_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "link.json"
    both = {name: vars(exchange(LINKS[0], size, 2)) for name, size in (("small", 1000), ("large", 50_000))}
    file.write_text(json.dumps(both))
    run(*PLAN, "--link", str(file), monkeypatch=monkeypatch)
    assert "(measured)" in capsys.readouterr().out
    loaded = link.load(file)
    assert loaded.bandwidth == pytest.approx(LINKS[0].bandwidth * LINKS[0].goodput)


GOOD = json.dumps(
    {
        "small": {"size": 1024, "degree": 2, "seconds": 0.01},
        "large": {"size": 1 << 20, "degree": 2, "seconds": 0.5},
    }
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--bandwidth"),
        (("--bandwidth", "100Mbit"), "--latency"),
        (("--link", "nowhere.json"), "nowhere.json"),
        (("--link", "x", "--latency", "5ms"), "leave the two out"),
        (("--bandwidth", "fast", "--latency", "5ms"), "100Mbit"),
        (("--bandwidth", "1Mbit", "--latency", "5ms", "--nodes", "0"), "--nodes"),
        (("--bandwidth", "1Mbit", "--latency", "5ms", "--nodes", "100000"), "--nodes"),
        (("--bandwidth", "1Mbit", "--latency", "5ms", "--parameters", "1e40"), "whole number"),
        (("--bandwidth", "1Mbit", "--latency", "5ms", "--parameters", "1.5"), "whole number"),
        (
            ("--bandwidth", "1Mbit", "--latency", "5ms", "--topology", "hypercube", "--nodes", "7"),
            "hypercube",
        ),
        (
            ("--bandwidth", "1Mbit", "--latency", "5ms", "--topology", "one-peer", "--algorithm", "dcd"),
            "ring",
        ),
    ],
)
def test_what_cannot_be_planned(words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=says):
        run(*PLAN, *words, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{}", '{"small": 1}', GOOD.replace("0.5", "NaN"), GOOD.replace("1024", "-1024")]
)
def test_a_broken_link_file_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "link.json"
    file.write_text(GOOD)
    assert link.load(file).measured
    file.write_text(text)
    with pytest.raises(UsageError, match=f"--link {file}: "):
        link.load(file)


def test_models_by_name() -> None:
    from gossip.plan.command import from_spec, matrix

    made = from_spec("experiments.models:build:resnet20")
    assert sum(p.numel() for p in made.parameters()) == 272_474 and next(made.parameters()).is_meta
    for values, shape in ((1, (1, 1)), (3, (1, 3)), (25_000_000, (5000, 5000)), (25_600_000, (5000, 5120))):
        (one,) = matrix(values).parameters()
        assert one.shape == shape and one.is_meta
    for wrong in ("nowhere:model", "math:sqrt", "json:dumps:1", "experiments.models"):
        with pytest.raises(UsageError, match=f"--model {wrong}"):
            from_spec(wrong)


@pytest.mark.parametrize("prime", [2, 5, 101, 25_600_013])
def test_a_prime_number_of_parameters_makes_no_single_row(prime: int) -> None:
    from gossip.plan.command import matrix

    (made,) = matrix(prime).parameters()
    rows, columns = made.shape
    assert prime - 3 <= made.numel() <= prime and rows <= columns <= max(2, 4.2 * rows)


def test_exchanges_are_timed_on_any_transport() -> None:
    def node() -> tuple[float, int]:
        world = transport.world()
        before = world.bytes_sent
        seconds = link.time_exchange(world, link.ring_neighbors(world), 1000, repeats=2, pieces=3)
        return seconds, world.bytes_sent - before

    found = gossip.launch(node, 3)
    assert len({seconds for seconds, _ in found}) == 1 and found[0][0] > 0
    assert all(sent == 3 * 2 * 1000 for _, sent in found)


@pytest.mark.parametrize("full", [False, True])
def test_a_link_file_that_cannot_be_written_is_one_message(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured if it can be known, else after the measurement has been printed."""

    def no_space(*args: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def time_exchange(world: object, neighbors: object, size: int) -> float:
        assert full, "measured first"
        return 1e-3 + 1e-8 * size

    monkeypatch.setattr(Path, "write_text", no_space)
    monkeypatch.setattr(link, "time_exchange", time_exchange)
    out = tmp_path / ("link.json" if full else "none/link.json")
    words = argparse.Namespace(out=out, large=1e5)
    with pytest.raises(WriteError, match=rf"{out} cannot be written: No s"):
        gossip.launch(lambda: link.run(words), 2)
    assert ("per message" in capsys.readouterr().out) == full


def test_a_link_needs_two(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="mpirun -n 4"):
        run("link", monkeypatch=monkeypatch)


def test_the_methods_own_computing_is_added_to_every_round() -> None:
    on, graph = Link(1e7, 5e-3, goodput=0.8, overhead=1e-3), make_topology("ring", 4)
    for spec in ("dcd", "deepsqueeze", "qsgd", "dcd:every=4"):
        method = make_algorithm(spec)
        (part,) = ranking.cut(nn.Linear(100, 10, bias=False), method)
        one = trips.of_round(method, graph, make_codec("qsgd"), part, t=1)
        for overlap in (True, False):
            without, with_it = (cost.step(method, [one], [1000], on, 0.1, own, overlap) for own in (0.0, 2.0))
            assert with_it.total - without.total == pytest.approx(2.0 / method.every) == with_it.own


@pytest.mark.parametrize(
    ("spec", "encodes", "decodes"),
    [("dcd", 1, 3), ("qsgd:gather=all", 1, 5), ("qsgd:gather=scatter", 5, 9), ("allreduce", 0, 0)],
)
def test_a_node_decodes_what_it_receives_and_its_own(spec: str, encodes: int, decodes: int) -> None:
    """On a ring of 5."""
    method = make_algorithm(spec)
    (part,) = ranking.cut(nn.Linear(100, 10, bias=False), make_algorithm("dpsgd"))
    one = trips.of_round(method, make_topology("ring", 5), make_codec("qsgd"), part, t=1)
    assert (one.encodes, one.decodes) == (encodes, decodes)


def test_what_a_plan_sends_is_per_step() -> None:
    net = nn.Linear(100, 10)
    options: dict[str, Any] = {"topologies": ["ring"], "compressors": ["sign"]}
    (each,), (fourth,) = (
        ranking.rank(net, 4, Link(1e7, 1e-3), algorithms=[spec], **options) for spec in ("dcd", "dcd:every=4")
    )
    assert fourth.sent == pytest.approx(each.sent / 4)


def test_of_graphs_that_take_the_same_time_the_one_that_mixes_faster_comes_first() -> None:
    plans = ranking.rank(nn.Linear(100, 10), 8, Link(1e12, 0.0), compute=1.0, algorithms=["dpsgd"])
    gaps = [plan.spectral_gap for plan in plans]
    assert len(set(gaps)) > 2 and gaps == sorted(gaps, reverse=True)


def test_a_fit_stays_within_what_is_possible() -> None:
    """Noise can make the small exchange quicker than the latency, and the large one quicker than the rate."""
    fitted = Link.fit(1e6, 5e-3, Exchange(100, 1, 4e-3), Exchange(10_000, 1, 0.04))
    assert fitted.overhead == 0 and fitted.goodput == 1


def test_a_planned_step_is_the_mean_over_the_rounds_that_recur() -> None:
    """Slim-DP's full pushes among them."""
    on = Link(1e6, 1e-3)
    one = ranking.Candidate.of(
        nn.Linear(100, 10), make_algorithm("slim:q=4"), make_topology("ring", 4), make_codec("fp16")
    )
    each = [cost.step(one.method, buckets, one.sizes, on, 0.1, 0.0).exchange for buckets in one.rounds]
    assert len(each) == 4 and max(each) > 1.5 * min(each)
    assert one.step(on, 0.1, own=0.0).exchange == pytest.approx(sum(each) / 4)
