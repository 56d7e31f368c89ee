"""The P3 benchmark without its laboratory: what its hosts do, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gossip
from experiments.bench import p3 as bench
from experiments.netlab.network import Network
from experiments.p3_simulation.layers import Layer

LAYERS = [Layer(f"layer{k}", 1000 + k, 1e-3, 2e-3) for k in range(3)]


def test_a_layer_sleeps_for_its_time_and_makes_up_a_gradient() -> None:
    layer = bench.SleepingLayer(Layer("", 5, 0.02, 0.04))
    start = torch.zeros(1, requires_grad=True)
    with torch.autograd.profiler.profile() as profile:
        layer(start).sum().backward()
    assert profile.self_cpu_time_total >= 1e6 * 0.06
    assert layer.weight.grad is not None and layer.weight.grad.shape == (5,) and bool(layer.weight.grad.all())
    assert start.grad is not None


def test_hosts_measure_in_turns_and_the_report_compares(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "collect", dict)  # takes seconds
    args = bench.parser().parse_args(["--pairs", "2", "--steps", "1", "--json", str(tmp_path / "p3.json")])
    found = gossip.launch(lambda: bench.measure(gossip.world(), LAYERS, args), 2)
    assert found[0] == found[1], "the slowest host counts, on all"
    assert [list(turn) for turn in found[0]["turns"]] == [["FIFO, layers", "P3"], ["P3", "FIFO, layers"]]
    # On virtual nodes, which take turns, hosts do not sleep side by side.
    assert all(seconds >= 3 * 3e-3 for turn in found[0]["turns"] for seconds in turn.values())
    assert found[0]["rate"] > 0

    turns = [{"FIFO, layers": 2.0, "P3": 1.5}, {"FIFO, layers": 2.0, "P3": 1.0}]
    bench.report(args, LAYERS, Network(1e8, 1e-3), {"turns": turns, "rate": 1e9})
    printed = capsys.readouterr().out
    assert "8 Gbit/s" in printed and "P3: 1.500, 1.000 s; median 1.250 s, simulated 0.0" in printed
    assert "P3's step is shorter by 25.0, 50.0 %; median 37.5 %, simulated" in printed
    saved = json.loads((tmp_path / "p3.json").read_text())
    assert saved["shorter"] == [0.25, 0.5] and saved["compute_seconds"] == pytest.approx(9e-3)
