"""The simulation of P3: cases worked out by hand, bounds that no schedule beats, the paper's two ideas."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.p3_simulation import __main__ as command
from experiments.p3_simulation.layers import MODELS, Layer, load, multiply_adds, total
from experiments.p3_simulation.simulator import BYTES, Cluster, Run, cut, simulate
from gossip.algorithms.p3 import P3
from gossip.errors import UsageError, WriteError
from gossip.flat import FlatModel
from tests.training import Net

FIFO, PRIORITY = (P3(slice="layer", order=order, in_flight=2) for order in ("fifo", "priority"))
SECOND = 1000  # values that a link takes a second for, in the cases by hand


def cluster(nodes: int, **options: float) -> Cluster:
    return Cluster(nodes, bandwidth=float(BYTES * SECOND), **options)


def layer(seconds: float, forward: float = 1.0, backward: float = 2.0) -> Layer:
    """A layer that takes so many seconds to send."""
    return Layer("", round(seconds * SECOND), forward, backward)


# -- by hand -------------------------------------------------------------------------------------------


def test_one_node_computes_and_nothing_else() -> None:
    assert simulate([layer(5), layer(7)], cluster(1), P3(), steps=3).ends == pytest.approx((6, 12, 18))


def test_push_update_pull() -> None:
    """Forward until 1, backward until 3; rank 1 pushes until 5; the owner updates until 5.5, sends until 7.5.

    Rank 0 has the mean at 5.5, rank 1 at 7.5, and its backward ends at 10.5.
    """
    machines = cluster(2, update_per_slice=0.3, update_per_value=0.0001)
    run = simulate([layer(2)], machines, FIFO, steps=3)
    assert [(s.rank, s.track, s.start, s.end) for s in run.spans[:8]] == [
        (0, "forward", 0, 1),
        (1, "forward", 0, 1),
        (0, "backward", 1, 3),
        (1, "backward", 1, 3),
        (1, "push", 3, 5),
        (0, "update", 5, pytest.approx(5.5)),
        (0, "forward", pytest.approx(5.5), pytest.approx(6.5)),
        (0, "pull", pytest.approx(5.5), pytest.approx(7.5)),
    ]
    for step in range(3):
        assert [run.final[step, rank, 0] for rank in range(2)] == pytest.approx(
            [5.5 + 7.5 * step, 7.5 + 7.5 * step]
        )
    assert run.ends == pytest.approx((3, 10.5, 18)) and run.step_time == pytest.approx(7.5)


def test_latency_is_paid_on_the_way_there_and_back() -> None:
    run = simulate([layer(2)], cluster(2, latency=0.25), FIFO)
    assert run.final[0, 0, 0] == pytest.approx(3 + 2 + 0.25)
    assert run.final[0, 1, 0] == pytest.approx(3 + 2 + 0.25 + 2 + 0.25)


def test_senders_share_a_downlink_and_receivers_an_uplink() -> None:
    """Three workers push 1 s each to rank 0 at 3: it has all at 6. Its three broadcasts leave one by one."""
    run = simulate([layer(1)], cluster(4), P3(slice="layer", in_flight=3))
    assert run.final[0, 0, 0] == pytest.approx(6)
    assert [run.final[0, rank, 0] for rank in (1, 2, 3)] == pytest.approx([7, 8, 9])


def test_a_bound_of_one_waits_for_the_acknowledgement() -> None:
    """Rank 1 pushes two slices: the second leaves when the first has arrived (1 s) and the word is back."""
    slices = P3(slice=SECOND, in_flight=1)
    run = simulate([layer(4)], cluster(2, latency=0.1), slices)
    pushes = [span for span in run.spans if span.rank == 1 and span.track == "push" and span.step == 0]
    assert [span.start for span in pushes] == pytest.approx([3, 4.2])
    two = simulate([layer(4)], cluster(2, latency=0.1), dataclasses.replace(slices, in_flight=2))
    pushes = [span for span in two.spans if span.rank == 1 and span.track == "push" and span.step == 0]
    assert [span.start for span in pushes] == pytest.approx([3, 4])


@pytest.mark.parametrize(
    ("method", "order"),
    [
        (FIFO, ["push 4", "push 2", "push 0", "pull 3", "pull 1"]),
        (PRIORITY, ["push 4", "push 0", "push 2", "pull 1", "pull 3"]),
    ],
)
def test_the_first_layer_overtakes(method: P3, order: list[str]) -> None:
    """Backward ends between 5.1 (layer 4) and 5.5 (layer 0); all take 1 s to send, and rank 1 owns 3 and 1.

    When it has pushed 4, at 6.1, layers 2 and 0 wait. Rank 0 pushes 3 until 6.2 and 1 until 7.2.
    """
    run = simulate([layer(1, 1, 0.1)] * 5, cluster(2), dataclasses.replace(method, in_flight=1))
    mine = [s for s in run.spans if (s.rank, s.step) == (1, 0) and s.track in ("push", "pull")]
    assert [f"{s.track} {s.layer}" for s in mine] == order
    assert [s.start for s in mine] == pytest.approx([5.1, 6.1, 7.1, 8.1, 9.1])


# -- what holds for every model, machine and method ----------------------------------------------------

models = st.lists(
    st.builds(Layer, st.just(""), st.integers(1, 3000), st.floats(0.01, 1), st.floats(0.01, 2)),
    min_size=1,
    max_size=6,
)
machines = st.builds(
    Cluster,
    st.integers(1, 4),
    st.floats(1e3, 1e5),
    st.floats(0, 0.1),
    st.floats(0, 1e-4),
    st.floats(0, 0.01),
    st.floats(0, 0.01),
)
methods = st.builds(
    P3,
    st.one_of(st.integers(200, 4000), st.just("layer")),
    st.sampled_from(["fifo", "priority"]),
    st.integers(1, 4),
)


@settings(max_examples=60, deadline=None)
@given(models, machines, methods)
def test_bounds(model: list[Layer], machine: Cluster, method: P3) -> None:
    run = simulate(model, machine, method)
    values, compute = total(model)
    assert run == simulate(model, machine, method), "not deterministic"
    assert min(b - a for a, b in pairwise((0.0, *run.ends))) >= compute * (1 - 1e-9), (
        "faster than it computes"
    )
    slices, n = cut(model, method, machine.nodes), machine.nodes
    owned = [BYTES * sum(s.values for s in slices if s.owner == rank) for rank in range(n)]
    assert run.sent == tuple((n - 1) * own + BYTES * values - own if n > 1 else 0 for own in owned)
    # All that every rank sends has left before the step after the next begins.
    assert run.ends[-1] >= (len(run.ends) - 1) * max(run.sent) / machine.bandwidth * (1 - 1e-9)
    for s in run.spans:
        if s.track == "forward" and s.step > 0:
            assert s.start >= run.final[s.step - 1, s.rank, s.layer], "a layer ran before its update had come"
    for rank in range(n):
        uplink = sorted((s.start, s.end) for s in run.spans if s.rank == rank and s.track in ("push", "pull"))
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(uplink)), "two at once"


def first_layer(model: str, seconds: float, method: P3) -> list[float]:
    """When the ranks have the first layer's mean, in a step that computes 1 s and sends for `seconds`."""
    of_model = load(model, 1.0)
    machine = Cluster(4, 1.5 * BYTES * total(of_model)[0] / seconds)
    run = simulate(of_model, machine, method, steps=2)
    return [run.final[0, rank, 0] for rank in range(4)]


@pytest.mark.parametrize("seconds", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("model", ["vgg16-cifar", "resnet50"])
def test_in_slices_priority_never_delays_the_first_layer(model: str, seconds: float) -> None:
    fifo, priority = (first_layer(model, seconds, P3(order=order)) for order in ("fifo", "priority"))
    assert all(a <= b for a, b in zip(priority, fifo, strict=True))


def test_whole_layers_on_their_way_cannot_be_overtaken() -> None:
    """Why priority needs slices: a layer that had to let others go first is in the way of the first one."""
    fifo, priority = (first_layer("vgg16-cifar", 0.5, method) for method in (FIFO, PRIORITY))
    assert min(priority) > max(fifo)


# -- the paper's claims --------------------------------------------------------------------------------


def times(model: str, share: float, **options: float) -> dict[str, float]:
    """Step times where sending takes `share` of a step's computing, which takes 1 s."""
    of_model = load(model, 1.0)
    values, _ = total(of_model)
    machine = Cluster(4, 1.5 * BYTES * values / share, **options)
    runs: dict[str, Run] = command.compare(of_model, machine, 50_000, P3().in_flight)
    return {name: run.step_time for name, run in runs.items()}


@pytest.mark.parametrize("model", ["alexnet", "resnet50", "vgg16-cifar"])
def test_p3_gains_most_where_sending_takes_as_long_as_computing(model: str) -> None:
    fifo, _, p3 = times(model, 1.0).values()
    assert p3 < 0.9 * fifo and p3 < 1.15
    fast = times(model, 0.1)
    assert max(fast.values()) < 1.01, "a fast link hides everything"
    starved = times(model, 8.0)
    assert starved["priority, slices (P3)"] > 8.0 * (1 - 1e-9)
    assert fifo / p3 > starved[command.FIFO] / starved["priority, slices (P3)"], "a starved link is the limit"


def test_slices_that_are_too_small_cost_more_than_they_gain() -> None:
    cheap, dear = times("alexnet", 1.0), times("alexnet", 1.0, update_per_slice=5e-3)
    p3 = "priority, slices (P3)"
    assert dear[p3] > dear[command.FIFO] and cheap[p3] < cheap[command.FIFO]


# -- data and command ----------------------------------------------------------------------------------

KNOWN = {
    "alexnet": (60_965_224, 724_406_816),
    "resnet50": (25_557_032, 3_857_973_248),
    "vgg16-cifar": (33_638_218, 332_111_872),
    "vgg19": (143_667_240, 19_632_062_464),
}
"""Values and multiply-adds per image, as published for the first, second and last."""


def test_the_models_are_those_of_the_papers() -> None:
    assert set(MODELS) == KNOWN.keys()
    for model, (values, work) in KNOWN.items():
        layers = load(model, 3.0)
        assert total(layers) == (values, pytest.approx(3.0)) and multiply_adds(model) == work
        assert sum(layer.backward for layer in layers) == pytest.approx(2.0)
        assert (Path(command.__file__).parent / f"{model}.toml").read_text().count(f"{values:,}") == 1
    with pytest.raises(UsageError, match="did you mean 'vgg19'"):
        load("vgg91", 1.0)


@pytest.mark.parametrize("method", [P3(slice=100), FIFO])
def test_slices_and_owners_are_gossips(method: P3) -> None:
    flat = FlatModel(Net(), pieces=method.pieces(3))
    sizes: dict[str, int] = {}
    for name, p in Net().named_parameters():
        sizes[name.partition(".")[0]] = sizes.get(name.partition(".")[0], 0) + p.numel()
    slices = cut([Layer(name, size, 1, 2) for name, size in sizes.items()], method, 3)
    assert [s.values for s in slices] == [bucket.size for bucket in flat.buckets]
    assert [s.owner for s in slices] == [b % 3 for b in range(len(flat.buckets))]


def test_the_command_prints_a_table_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "p3.png"
    assert command.main(["--model", "vgg16-cifar", "--gbits", "1", "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vgg16-cifar: 33,638,218 values in 16 layers; 4 nodes") and len(lines) == 5
    assert lines[3].startswith("| 1 | 1.61 |")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "words", ["--gbits 0", "--gbits nan", "--slice 0", "--in-flight 0", "--update-ns -1", "--latency-us nan"]
)
def test_numbers_that_make_no_sense_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(words.split())
    assert words.split()[0] in capsys.readouterr().err


def test_an_unknown_model_and_a_picture_that_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="There is: "):
        command.main(["--model", "vgg91"])
    with pytest.raises(UsageError, match="give a name that ends in"):
        command.main(["--picture", "p3.foo"])
    pytest.importorskip("matplotlib")
    with pytest.raises(WriteError, match="/proc"):
        command.main(["--model", "vgg16-cifar", "--gbits", "1", "--picture", "/proc/p3.png"])
