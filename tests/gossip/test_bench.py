"""``python -m gossip bench codecs``: the table, the JSON file, and that the textbook versions are right."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from compressors import CODECS
from gossip import bench
from gossip.__main__ import main
from gossip.errors import UsageError, WriteError
from gossip.spec import make_codec

ROOT = Path(__file__).parents[2]


def test_every_codec_is_measured() -> None:
    before = torch.get_num_threads()
    rows = list(bench.rows_of(bench.SPECS, [1000], [1], "cpu", repeats=1))
    assert torch.get_num_threads() == before
    assert [row.codec for row in rows] == list(bench.SPECS)
    assert {make_codec(row.codec).name for row in rows} == set(CODECS)
    for row in rows:
        assert min(row.copy_ms, row.encode_ms, row.decode_ms, row.decode_add_ms) > 0
        assert row.payload_bytes <= make_codec(row.codec).max_bytes(1000)
        assert (row.textbook_encode_ms is None) == (row.textbook_decode_ms is None)
        assert bench.line(row).count("|") == bench.header().splitlines()[1].count("|")


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:bits=4", "terngrad", "sign", "topk:0.1"])
def test_the_textbook_version_does_the_same_work(spec: str) -> None:
    """The same relative error as the codec, within a tenth: it may be compared."""
    codec = make_codec(spec)
    book = bench.textbook(codec)
    assert book is not None
    encode, decode = book
    x = torch.randn(10_001, generator=torch.Generator().manual_seed(3))
    errors = [
        float((x - decoded).norm() / x.norm())
        for decoded in (decode(encode(x), len(x)), codec.decode(codec.encode(x, 0), len(x)))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.1)


def test_verdicts_name_what_was_missed() -> None:
    def row(codec: str, threads: int, ms: float, values: int = bench.SIZES[-1]) -> bench.Row:
        return bench.Row(codec, "cpu", threads, values, 1, 10.0, ms, ms, ms, None, None)

    words = list(bench.verdicts([row("qsgd", 1, 35.0), row("qsgd", 2, 20.0), row("grid", 1, 900.0)]))
    assert [w.split()[0] for w in words] == ["met", "MISSED", "met", "met"]
    assert list(bench.verdicts([row("sign", 1, 1.0, values=1000)])) == []
    assert "MISSED" in next(bench.verdicts([row("qsgd:bits=4", 1, 1.0, values=272_474)]))
    on_gpu = replace(row("sign", 1, 10.0), device="cuda", copy_ms=10.0)
    assert "MISSED" in next(bench.verdicts([on_gpu]))
    assert "met" in next(bench.verdicts([replace(on_gpu, encode_ms=8.0)]))


def bench_to(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("bench", "codecs", "--codec", "sign", "--sizes", "1e3", "--threads", "1", "--repeats", "1")
    monkeypatch.setattr("sys.argv", ["gossip", *words, "--json", str(file)])
    main()


@pytest.mark.parametrize(("file", "why"), [("none/x.json", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    file: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", lambda *args: pytest.fail("measured first"))
    with pytest.raises(UsageError, match=f"--json .*: {why}"):
        bench_to(tmp_path / file, monkeypatch)


def test_a_full_disk_takes_the_file_and_not_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(WriteError, match=r"x\.json cannot be written: No space left"):
        bench_to(tmp_path / "x.json", monkeypatch)
    assert "sign" in capsys.readouterr().out


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "codecs.json"
    words = ["bench", "codecs", "--codec", "sign", "--codec", "qsgd:bits=4", "--sizes", "1e3", "2e3"]
    result = subprocess.run(
        [sys.executable, "-m", "gossip", *words, "--threads", "1", "--repeats", "1", "--json", str(file)],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(file.read_text())["rows"]
    assert [(row["codec"], row["values"]) for row in rows] == [
        ("sign", 1000),
        ("qsgd:bits=4", 1000),
        ("sign", 2000),
        ("qsgd:bits=4", 2000),
    ]
    assert result.stdout.count("qsgd:bits=4") == 2
