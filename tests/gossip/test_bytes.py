"""Bytes from shapes alone: published tables are met, and what is printed is what a transport counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossip
from gossip import byte_table, shapes, traffic
from gossip.__main__ import main
from gossip.algorithms import ALGORITHMS
from gossip.errors import UsageError
from gossip.fit import bucket_bytes
from gossip.flat import FlatModel
from gossip.spec import make_algorithm, make_codec, make_topology
from tests.training import Net, train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NET = shapes.of(Net(), "net")

VARIANTS = (
    "dpsgd:order=atc",
    "dcd:every=3",
    "qsgd:gather=scatter",
    "qsgd:ef=true,gather=all",
    "powersgd:rank=1",
    "dgc:warmup_steps=2,ratio=0.01",
    "dgc:clip=0.5,values=fp16,indices=uint32",
    "dgc:dense_1d=false",
    "gradient-dropping:threshold=exact",
)
SPECS = (*ALGORITHMS, *VARIANTS)
CODECS = ("qsgd:bits=4,block=16", "randk:ratio=0.25", "per-tensor:topk:0.1", "threshold:0")
"""Every value passes a threshold of 0."""


def counted(
    spec: str, codec: str | None, n: int, steps: int, make: Callable[[], nn.Module] = Net, **options: Any
) -> list[int]:
    """By rank: what the transport counts while the model is really trained."""

    def node() -> int:
        torch.manual_seed(0)
        _, session = train(steps, model=make(), algorithm=spec, compressor=codec, **options)
        return int(session.stats.take()["bytes_sent"])

    return gossip.launch(node, n)


def declared(
    spec: str,
    codec: str | None,
    n: int,
    rounds: range,
    topology: str = "ring",
    bucket_mb: float | None = None,
    net: shapes.Shapes = NET,
) -> traffic.Traffic:
    """The same from the shapes."""
    method = make_algorithm(spec)
    buckets = FlatModel(net.module(), bucket_bytes(method, bucket_mb), method.pieces(n)).buckets
    return traffic.of_rounds(
        method,
        make_topology(topology, n),
        make_codec(codec or method.default_compressor),
        [bucket.segments for bucket in buckets],
        rounds,
    )


def rounds_of(spec: str, steps: int) -> range:
    return range(1, steps // getattr(make_algorithm(spec), "every", 1) + 1)


def with_codecs() -> Iterator[tuple[str, str | None]]:
    for spec in SPECS:
        yield from ((spec, codec) for codec in (CODECS if make_algorithm(spec).uses_compressor else [None]))


# -- what is printed is what the transport counts --------------------------------------------------------


@pytest.mark.parametrize(("spec", "codec"), list(with_codecs()))
def test_declared_bytes_are_counted_bytes(spec: str, codec: str | None) -> None:
    """By rank, to the byte.

    Where a message's length depends on the data, this is the most it can be, and is met here: every value
    passes the threshold, in a net so small every sample is the whole tensor, and no run needs an escape.
    """
    n, steps = 3, 3
    assert counted(spec, codec, n, steps) == list(declared(spec, codec, n, rounds_of(spec, steps)).sent)


def test_slims_paper_ratio_counts_values_as_its_codec_sends_them() -> None:
    method = make_algorithm("slim:alpha=0.3,beta=0.1")
    codecs = (make_codec("identity"), make_codec("qsgd:block=100"))
    exact, coded = (method.paper_size([(1000, 10)], codec) for codec in codecs)
    assert exact.bytes == pytest.approx(4 * 0.3 * 10_000 + 4 * 0.2 * 10_000)
    assert coded.bytes == pytest.approx(0.3 * (10_000 + 4 * 100) + 4 * 0.2 * 10_000)


def wide() -> nn.Module:
    """A tensor so large that a sample of it is a part, with gradients of which none is 0."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4096), nn.Tanh(), nn.Linear(4096, 3))


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ("dgc:ratio=0.01,warmup_steps=0", 0.9),
        ("dgc:ratio=0.01,warmup_steps=3,values=fp16", 0.9),
        ("gradient-dropping:ratio=0.01", 0.9),
        ("dgc:ratio=0.01,warmup_steps=0,threshold=exact", 0.999),  # but for escapes that are not needed
        ("dgc:ratio=0.01,warmup_steps=0,threshold=exact,indices=uint32", 1),
    ],
)
def test_a_bound_is_close_to_what_is_sent(spec: str, least: float) -> None:
    expected = declared(spec, None, 3, range(1, 6), net=shapes.of(wide(), "wide")).sent
    for sent, most in zip(counted(spec, None, 3, 5, make=wide), expected, strict=True):
        assert least * most <= sent <= most


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("spec", ["choco", "qsgd:gather=scatter", "powersgd", "dgc", "dpsgd"])
@pytest.mark.parametrize("options", [{}, {"topology": "star"}, {"bucket_mb": 0.0005}], ids=str)
def test_any_number_of_nodes_graph_and_buckets(spec: str, n: int, options: dict[str, Any]) -> None:
    codec = "qsgd:bits=4,block=16" if make_algorithm(spec).uses_compressor else None
    expected = declared(spec, codec, n, range(1, 4), **options)
    assert list(expected.sent) == counted(spec, codec, n, 3, **options)


@pytest.mark.parametrize(
    ("spec", "codec", "topology", "start", "steps"),
    [
        ("dpsgd:every=2", None, "one-peer", 0, 6),  # three rounds until the schedule repeats
        ("choco:every=3", "sign", "star", 0, 3),
        ("dgc:warmup_steps=4,ratio=0.01", None, "ring", 4, 2),
        ("slim:q=3,every=2", "fp16", "ring", 0, 6),  # until the next full push
        ("slim:keys=seed,q=2", "identity", "ring", 0, 2),
        ("allreduce", None, "ring", 0, 1),
        ("local", None, "ring", 0, 2),
    ],
)
def test_the_row_is_the_mean_over_steps_after_any_warm_up(
    spec: str, codec: str | None, topology: str, start: int, steps: int
) -> None:
    n = 5
    row = byte_table.row(NET, spec, codec, topology, nodes=n)
    before = counted(spec, codec, n, start, topology=topology) if start else [0] * n
    after = counted(spec, codec, n, start + steps, topology=topology)
    sent = [b - a for a, b in zip(before, after, strict=True)]
    assert row.sent_bytes == pytest.approx(sum(sent) / n / steps, rel=1e-12)
    assert row.busiest_sent_bytes == pytest.approx(max(sent) / steps, rel=1e-12)
    if spec == "allreduce":
        assert row.sent_bytes == row.allreduce_bytes and row.wire_ratio == row.paper_ratio == 1


@pytest.mark.parametrize("spec", ["dgc:warmup_steps=4,ratio=0.01", "slim:q=2,every=2"])
def test_first_steps_are_counted_as_a_whole_run_counts_them(spec: str) -> None:
    n, steps = 5, 6
    first, later = (byte_table.row(NET, spec, nodes=n, steps=only) for only in (steps, None))
    assert first.sent_bytes == pytest.approx(sum(counted(spec, None, n, steps)) / n / steps, rel=1e-12)
    assert first.sent_bytes != later.sent_bytes and first.message_bytes == later.message_bytes


# -- published sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "algorithm", "compressor", "dense", "message", "ratio"),
    [
        # Lin et al. 2018, tables 2 to 4
        ("resnet50", "dgc", None, "97.49", "0.352", 277),
        ("alexnet", "dgc", None, "232.56", "0.389", 598),  # 597.7; the paper rounds down
        ("ptb-lstm", "dgc", None, "194.68", "0.4215", 462),
        ("alexnet", "qsgd", "terngrad", "232.56", "29.19", 8),
        # The same law, on small networks.
        ("resnet20-a", "dgc", None, "1.03", "0.0068", 151),
        ("resnet20", "dgc", None, "1.04", "0.0076", 137),
        ("resnet50", "gradient-dropping", None, "97.49", "0.352", 277),
    ],
)
def test_published_sizes(
    model: str, algorithm: str, compressor: str | None, dense: str, message: str, ratio: int
) -> None:
    row = byte_table.row(shapes.load(model), algorithm, compressor)
    for size, told in ((row.dense_bytes, dense), (row.message_bytes, message)):
        assert f"{size / 2**20:.{len(told.partition('.')[2])}f}" == told
    assert row.paper_ratio is not None and round(row.paper_ratio) == ratio


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ("alexnet", 60_965_224),
        ("googlenet", 13_378_280),
        ("ptb-lstm", 51_034_000),
        ("resnet20", 272_474),
        ("resnet20-a", 269_722),
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
    ],
)
def test_built_in_models_have_their_published_number_of_values(model: str, values: int) -> None:
    assert shapes.load(model).size == values


def test_every_built_in_model_is_here() -> None:
    marks = test_built_in_models_have_their_published_number_of_values.pytestmark  # type: ignore[attr-defined]
    assert tuple(name for name, _ in marks[0].args[1]) == shapes.built_in()


def test_message_is_close_to_what_travels() -> None:
    """DGC's law leaves out what a real message has besides: that is little."""
    net = shapes.load("resnet50")
    for spec in ("dgc", "dgc:values=fp16", "dgc:indices=uint32", "dgc:ratio=0.01", "dgc:dense_1d=false"):
        row = byte_table.row(net, spec, nodes=2)  # each sends one message, and one vector's worth of means
        assert row.message_bytes == pytest.approx(row.sent_bytes, rel=1e-2)


def test_powersgd_sends_two_means() -> None:
    row = byte_table.row(shapes.Shapes("m", (("w", (30, 4, 5)), ("b", (30,)))), "powersgd:rank=2", nodes=4)
    assert row.message_bytes == 4 * (2 * (30 + 20) + 30)
    assert row.wire_ratio == pytest.approx(row.paper_ratio)


# -- shapes ----------------------------------------------------------------------------------------------


def test_shapes_are_those_of_the_model_and_survive_a_file(tmp_path: Path) -> None:
    net = Net()
    net.bn.bias.requires_grad_(False)
    net.again = net.hidden  # tied: counts once
    model = shapes.of(net, "net")
    assert model.size == sum(p.numel() for p in net.parameters() if p.requires_grad)
    (tmp_path / "net.toml").write_text(str(model))
    assert shapes.load(str(tmp_path / "net.toml")) == model
    rebuilt = model.module()
    assert [tuple(p.shape) for p in rebuilt.parameters()] == list(model.shapes)
    assert all(p.is_meta for p in rebuilt.parameters())


def test_shapes_make_the_buckets_of_the_model() -> None:
    real, ours = Net(), NET.module()
    for sizes in (None, (64,), (1000,), (64, 1000)):
        cut = [FlatModel(m, sizes).buckets for m in (real, ours)]
        assert [[s.shape for s in b.segments] for b in cut[0]] == [
            [s.shape for s in b.segments] for b in cut[1]
        ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no tensor"),
        ("w = [3, -1]", "w = .3, -1. is no shape"),
        ("w = [3, 0.5]", "is no shape"),
        ('w = "3x3"', "is no shape"),
        ("conv1.weight = [3]", "with the quotes"),
        ("w 3x3", "line 1"),
    ],
)
def test_files_without_shapes_are_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=told) as caught:
        shapes.load(str(file))
    assert str(file) in str(caught.value) and "a line per tensor" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"), [("resnet5O", "did you mean 'resnet50'"), ("none/x", "No such file")]
)
def test_an_unknown_model_names_those_that_exist(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        shapes.load(name)
    assert ", ".join(shapes.built_in()) in str(caught.value)


# -- the command -----------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["gossip", "bytes", *words])
    assert main() == 0
    return capsys.readouterr().out


def test_the_table_and_the_json_agree(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["resnet20", "alexnet", "--algorithm", "allreduce", "qsgd", "dgc", "dcd", "local", "--nodes", "8"]
    words += ["--topology", "star", "--compressor", "qsgd:bits=4"]
    text = run(capsys, monkeypatch, *words)
    rows = json.loads(run(capsys, monkeypatch, *words, "--json"))
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"
    ]
    assert len({line.index("|", 1) for line in text.splitlines() if line[:1] == "|"}) == 1
    assert lines[0] == list(byte_table.COLUMNS) and len(lines) == 2 + len(rows) == 12
    for row, (model, method, dense, message, paper, sent, wire) in zip(rows, lines[2:], strict=True):
        assert model == row["model"] and method.split()[0] == row["algorithm"]
        assert (row["compressor"] or "") in method and row["nodes"] == 8
        assert float(dense) == pytest.approx(row["dense_bytes"] / 2**20, abs=0.005)
        assert float(message) == pytest.approx(row["message_bytes"] / 2**20, abs=5e-5)
        assert sent.startswith("≤") == wire.startswith("≥") == (not row["exact"]) == (method == "dgc")
        assert float(sent.strip("≤ ")) == pytest.approx(row["sent_bytes"] / 2**20, abs=5e-5)
        if row["algorithm"] == "local":
            assert paper == wire == "–" and row["paper_ratio"] is row["wire_ratio"] is None
            continue
        assert float(paper) == pytest.approx(row["dense_bytes"] / row["message_bytes"], abs=0.05)
        assert float(wire.strip("≥ ")) == pytest.approx(row["wire_ratio"], abs=0.05)
        assert math.isclose(row["wire_ratio"], row["allreduce_bytes"] / row["sent_bytes"])
    assert "8 nodes, star" in text and "≤, ≥: " in text
    hub = next(row for row in rows if row["algorithm"] == "dcd")
    assert f"the busiest sends {hub['busiest_sent_bytes'] / 2**20:.4f} MB" in text
    assert hub["busiest_sent_bytes"] == pytest.approx(4 * hub["sent_bytes"])  # 7 of 14 messages from 1 of 8


@pytest.mark.parametrize(
    ("words", "told"),
    [("resnet50", False), ("resnet20", True), ("resnet50 --algorithm dgc:ratio=0.01", True)],
)
def test_a_ratio_below_the_published_ones_is_explained(
    words: str, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run(capsys, monkeypatch, *words.split())
    assert ("those of large models, at ratio=0.001" in text) == told and "first" not in text
    assert "the mean over the first 3 steps" in run(capsys, monkeypatch, *words.split(), "--steps", "3")


DOCS = (Path(__file__).parents[2] / "docs" / "bytes.md").read_text("utf-8")


@pytest.mark.parametrize(
    "shown",
    re.findall(r"```text\n\$ python -m gossip bytes (.*?)```", DOCS, re.DOTALL),
    ids=lambda shown: shown.partition("\n")[0],
)
def test_the_documentation_shows_what_is_printed(
    shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, output = shown.partition("\n")
    assert run(capsys, monkeypatch, *command.split()) == output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resnet20", "--algorithm", "dgcc"], "did you mean 'dgc'"),
        (["resnet20", "--compressor", "sign"], "dgc would not use it"),
        (["resnet20", "--algorithm", "dcd", "--topology", "exponential"], "needs a fixed, symmetric W"),
        (["resnet20", "--algorithm", "dpsgd", "--topology", "torus:3x3"], "torus"),
        (["resnet20", "--bucket-mb", "0"], "give a size in MiB above 0"),
        (["resnet20", "--algorithm", "dgc:clip=1", "--bucket-mb", "2"], "the whole gradient at once"),
    ],
)
def test_what_join_refuses_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=told):
        run(capsys, monkeypatch, *words)


@pytest.mark.parametrize("nodes", ["0", "-1", "two"])
def test_a_wrong_number_of_nodes(
    nodes: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run(capsys, monkeypatch, "resnet20", "--nodes", nodes)
    assert "is not a whole number above 0" in capsys.readouterr().err


def test_the_first_bucket_is_small_and_the_last_size_holds_for_all_that_follow() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(10, 10, bias=False) for _ in range(7)))
    sizes = [bucket.size for bucket in FlatModel(model, (400, 800)).buckets]
    assert sizes == [100, 200, 200, 200]
    for method in ("allreduce", "qsgd", "dgc"):
        assert bucket_bytes(make_algorithm(method)) == (2**20, 25 * 2**20)
    assert bucket_bytes(make_algorithm("dpsgd")) is None
    assert bucket_bytes(make_algorithm("dpsgd"), 2.0) == (2**21,)
