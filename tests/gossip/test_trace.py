"""The trace: its form, what it tells, that clocks agree, and that P3 sends first layers first."""

from __future__ import annotations

import gzip
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossip
from gossip import trace as tracing
from gossip.errors import UsageError
from gossip.session import Session
from gossip.trace import clock_offset
from tests.training import Net, batches, sgd

N = 3
STEPS = 4

Event = dict[str, Any]


def train(algorithm: str, path: Path | None) -> Session:
    torch.manual_seed(0)
    model = Net()
    optimizer = sgd(model)
    node = gossip.join(model, optimizer, algorithm=algorithm, trace=path)
    for x, y in batches(node.rank, STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    node.finish()
    return node


def read(path: Path) -> list[Event]:
    data = path.read_bytes()
    events: list[Event] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return events


def spans(events: list[Event], track: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == track]


@pytest.mark.parametrize(
    ("algorithm", "name"), [("p3:slice=100", "a.json"), ("dcd", "new/a.json.gz"), ("allreduce", "a.json")]
)
def test_a_trace_is_what_viewers_read(algorithm: str, name: str, tmp_path: Path) -> None:
    """Complete events with names, times in µs and rows; in a row they lie beside or inside each other."""
    before = time.perf_counter()
    gossip.launch(train, N, algorithm, tmp_path / name)
    took = 1e6 * (time.perf_counter() - before)
    events = read(tmp_path / name)
    rows = defaultdict[tuple[int, int], list[Event]](list)
    for event in events:
        assert event["ph"] in ("X", "M") and event["pid"] in range(N) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= took and isinstance(event["name"], str)
            rows[event["pid"], event["tid"]].append(event)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named.keys() == rows.keys()
    ranks = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert ranks == [f"rank {rank}" for rank in range(N)]
    for row, inside in rows.items():
        assert {e["cat"] for e in inside} == {named[row].rstrip("0123456789 ")}
        open_until: list[float] = []
        for event in sorted(inside, key=lambda e: (e["ts"], -e["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 0.2:  # times are rounded to 0.1 µs
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.2, "two spans of a row cross"
            open_until.append(end)


@pytest.mark.parametrize("algorithm", ["p3:slice=100", "dcd", "allreduce"])
def test_it_tells_what_happened(algorithm: str, tmp_path: Path) -> None:
    nodes = gossip.launch(train, N, algorithm, tmp_path / "trace.json")
    events = read(tmp_path / "trace.json")
    for node in nodes:
        mine = [event for event in events if event["pid"] == node.rank]
        computed = [event["name"] for event in spans(mine, "compute")]
        for name, _ in Net().named_modules():
            assert computed.count(f"forward {name}".strip()) == STEPS, name
        for name, _ in Net().named_parameters():
            assert computed.count(f"backward {name}") == STEPS, name
        assert computed.count("optimizer") == STEPS
        taken, flights = node.stats.take(), spans(mine, "in flight")
        if algorithm == "allreduce":
            assert len(flights) == STEPS  # one bucket
        else:
            assert len(flights) == taken["messages_sent"]
            assert sum(flight["args"]["bytes"] for flight in flights) == taken["bytes_sent"]
            assert {flight["args"]["to"] for flight in flights} == set(range(N)) - {node.rank}
        assert {flight["args"]["round"] for flight in flights} == set(range(1, STEPS + 1))
        for part in ("encode", "decode", "mix"):
            in_trace = sum(event["dur"] for event in spans(mine, part)) / 1e3
            # What a lazy method decodes after its last step belongs to no step's statistics.
            booked = sum(taken[f"{part}_ms"]) + 1e3 * getattr(node.stats, part)
            assert in_trace == pytest.approx(booked, rel=0.01, abs=0.02)


def test_a_message_arrives_after_it_has_left_by_one_clock(tmp_path: Path) -> None:
    """An owner of P3 broadcasts when it has all pushes, so on one clock it does so after they have left."""
    gossip.launch(train, N, "p3:slice=100", tmp_path / "trace.json")
    of_slice = defaultdict[tuple[str, int], list[Event]](list)
    for flight in spans(read(tmp_path / "trace.json"), "in flight"):
        of_slice[flight["name"], flight["args"]["round"]].append(flight)
    for (name, _), flights in of_slice.items():
        owner = int(name.split()[1]) % N
        pushes = [flight for flight in flights if flight["pid"] != owner]
        pulls = [flight for flight in flights if flight["pid"] == owner]
        assert len(pushes) == len(pulls) == N - 1 and {push["args"]["to"] for push in pushes} == {owner}
        assert max(push["ts"] for push in pushes) < min(pull["ts"] for pull in pulls)


def test_clocks_are_aligned() -> None:
    ahead = [0.0, 100.0, -7.5]

    def node() -> float:
        world = gossip.world()
        return clock_offset(world, lambda: time.perf_counter() + ahead[world.rank])

    for offset, expected in zip(gossip.launch(node, N), ahead, strict=True):
        assert offset == pytest.approx(expected, abs=0.05)


def test_of_what_waits_the_first_layer_goes_first(tmp_path: Path) -> None:
    """Nothing leaves while something of its round with a smaller priority is waiting."""
    gossip.launch(train, N, "p3:slice=40,in_flight=1", tmp_path / "trace.json")
    flights = spans(read(tmp_path / "trace.json"), "in flight")
    overtaken = 0
    for flight in flights:
        here = flight["pid"], flight["args"]["round"]
        for other in flights:
            since = other["ts"] - 1e3 * other["args"]["queued_ms"]
            if (other["pid"], other["args"]["round"]) == here and since + 1 < flight["ts"] < other["ts"] - 1:
                assert other["args"]["priority"] >= flight["args"]["priority"]
                overtaken += other["args"]["priority"] > flight["args"]["priority"]
    assert overtaken > 0, "nothing had to wait for something more urgent"


def test_a_trace_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "MOST_EVENTS", 50)
    gossip.launch(train, N, "p3:slice=100", tmp_path / "trace.json")
    assert len([event for event in read(tmp_path / "trace.json") if event["ph"] == "X"]) == 50 * N
    assert "rank 0: the trace leaves out its last" in caplog.text


def test_it_costs_nothing_where_it_is_not_asked_for(tmp_path: Path) -> None:
    """No hooks; and where it is, no traffic."""
    model = nn.Linear(2, 2)
    node = gossip.join(model, sgd(model))
    assert not model._forward_hooks
    node.finish()
    books = [
        [(n.stats.bytes_sent, n.world.bytes_sent, n.world.messages_sent) for n in nodes]
        for nodes in (gossip.launch(train, N, "dcd", path) for path in (None, tmp_path / "trace.json"))
    ]
    assert books[0] == books[1]


def test_problems_are_found_at_join(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"trace='.*/file/a.json': "):
        gossip.launch(train, 2, "dpsgd", tmp_path / "file" / "a.json")
    with pytest.raises(UsageError, match="disagree on trace"):
        gossip.launch(lambda: train("dpsgd", tmp_path / "a.json" if gossip.world().rank else None), 2)
