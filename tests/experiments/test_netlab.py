"""The network laboratory: what it judges and shows, on made-up numbers; that hosts are as asked, and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import models
from experiments.netlab import __main__ as command
from experiments.netlab import compute, figures, findings, goodput, isolation, network, report, requirements
from experiments.netlab.compute import Compute, Paced
from experiments.netlab.jobs import Job
from experiments.netlab.methods import METHODS, with_graph
from experiments.netlab.network import Network
from experiments.netlab.results import Results
from gossip.errors import UsageError, WriteError
from gossip.plan import cost, ranking, trips
from gossip.plan.cost import Link
from gossip.spec import make_topology
from tests.mpi import laboratory
from tests.mpirun import ROOT, find_mpirun

BANDWIDTHS, LATENCIES = (1.4e9, 20e6, 5e6), (0.13e-3, 5e-3, 20e-3)
TRUTH = Link(1.0, 0.0, goodput=0.8, overhead=0.5e-3)
STEP, OWN = 0.135, {"encode_ms": 1.0, "decode_ms": 2.0, "mix_ms": 3.0}
HOSTS = 8


def made_up(folder: Path) -> Results:
    """Results as they would be if the cost model were the whole truth."""
    with torch.device("meta"):
        model = models.build("resnet20")
    ring = make_topology("ring", HOSTS)
    candidates = {key: ranking.Candidate.of(model, *with_graph(m, ring)) for key, m in METHODS.items()}
    about = {
        "command": "made up",
        "started": "never",
        "cores": 2,
        "platform": "none",
        "torch": "none",
        "load": 0.0,
        "congestion": "none",
        "hosts": HOSTS,
        "model": "resnet20",
        "batch_size": 32,
        "compute_seconds": STEP,
        "compute": "made up",
        "goodput": "made up",
    }
    results = Results(folder / "results.json", about)
    for bandwidth in BANDWIDTHS:
        for latency in LATENCIES:
            where = {"bandwidth": bandwidth, "latency": latency}
            on = TRUTH.at(bandwidth, latency)
            local = {"step_ms": 1e3 * STEP, "step_ms_by_host": [1e3 * STEP] * HOSTS, "wire_bytes": 0.0}
            local |= {"cores_busy": 0.5}
            results.cells.append({"method": "local", "overlap": True, **local, **where})
            for key, method in METHODS.items():
                (buckets,) = candidates[key].rounds
                alone, sent = (
                    1e3 * sum(on.busy(one) + on.idle(one) for one in buckets),
                    sum(one.sent for one in buckets),
                )
                for overlap in (True, False) if method.algorithm else (True,):
                    step = candidates[key].step(on, STEP, overlap, own=sum(OWN.values()) / 1e3)
                    cell = {
                        "method": key,
                        "overlap": overlap,
                        "step_ms": 1e3 * step.total,
                        "step_ms_by_host": [1e3 * step.total] * HOSTS,
                        "wire_bytes": 1.05 * sent,
                        "cores_busy": 0.5,
                        "exchange_ms": alone if method.gossips and overlap else None,
                    }
                    if method.algorithm:
                        cell |= {"bytes_sent": sent, "exposed_wait_ms": 1e3 * step.exposed, **OWN}
                    results.cells.append(cell | where)
    on = TRUTH.at(*results.networks()[0])
    exchanges = {}
    for name, size in (("small", 1000), ("large", 1_000_000)):
        one = trips.Round(((trips.Trip(2 * size, size),),), 2 * size)
        exchanges[name] = vars(cost.Exchange(size, 2, on.busy(one) + on.idle(one)))
    results.calibration = {**exchanges, "bandwidth": on.bandwidth, "latency": on.latency}
    ours = [key for key, method in METHODS.items() if method.algorithm]
    results.losses = {key: [2.3 / (1 + i / 10) for i in range(30)] for key in ours}
    row = {
        "setting": "the framework's",
        "payload": 1_000_000,
        "pieces": 1,
        "congestion": "reno",
        "seconds": 1.0,
    }
    results.goodput = [
        row | {"setting": setting, "rate": rate, "goodput": share}
        for setting, shares in (("the framework's", (0.95, 0.5)), ("plain sockets", (0.96, 0.6)))
        for rate, share in zip((1e7, 1e8), shares, strict=True)
    ]
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made_up(tmp_path_factory.mktemp("results"))


def changed(results: Results, key: str, corner: str, factor: float, what: str = "step_ms") -> Results:
    """The results with one method changed on one network."""
    where = findings.corners(results)[corner]
    cells = [
        c | {what: c[what] * factor} if (c["method"], c["bandwidth"], c["latency"]) == (key, *where) else c
        for c in results.cells
    ]
    return replace(results, cells=cells)


# -- judgements --------------------------------------------------------------------------------------------


def test_the_papers_findings_hold_where_the_cost_model_is_the_truth(results: Results) -> None:
    verdicts = list(findings.paper(results, overlap=False))
    assert [v.held for v in verdicts] == [True] * 4, verdicts
    assert all(f"{METHODS[key].label} " in v.numbers for v in verdicts for key in ("allreduce", "dcd8"))


@pytest.mark.parametrize(
    ("which", "key", "corner", "factor"),
    [
        (0, "dcd8", "best", 1.5),
        (0, "allreduce", "best", 0.5),
        (1, "dpsgd", "far", 5),
        (1, "ecd8", "far", 5),
        (2, "dcd8", "slow", 9),
        (2, "dpsgd", "slow", 0.5),
        (3, "ecd8", "both", 9),
        (3, "dpsgd", "both", 0.5),
    ],
)
def test_a_finding_falls_with_its_numbers(
    results: Results, which: int, key: str, corner: str, factor: float
) -> None:
    held = [v.held for v in findings.paper(changed(results, key, corner, factor), overlap=False)]
    assert held[which] is False
    assert all(held[i] for i in range(4) if i != which)


def test_nothing_is_judged_without_its_measurements(results: Results) -> None:
    few = replace(results, cells=[c for c in results.cells if c["method"] != "ecd8"])
    assert {v.held for v in findings.paper(few, overlap=False)} == {None}
    one = replace(results, cells=[c for c in results.cells if c["bandwidth"] == 5e6], calibration={})
    assert [v.held for v in findings.paper(one, overlap=False)] == [None] * 4
    assert [v.held for v in (*findings.planner(one), *findings.against_ddp(one))] == [None] * 3
    slowed = replace(results, about=results.about | {"slow": [[3, 2.0]]})
    assert {v.held for v in findings.overlap(slowed)} == {None}


def test_overlap_is_judged_by_the_exchange_alone(results: Results) -> None:
    assert [v.held for v in findings.overlap(results)] == [True] * 4
    found = list(findings.hidings(results))
    assert any(h.fits for h in found) and any(not h.fits for h in found)
    assert {h.method for h in found} == {key for key, method in METHODS.items() if method.gossips}
    cells = [
        c | {"exposed_wait_ms": 0.06 * c["step_ms"]}
        if c["method"] == "dcd8" and c["overlap"] and c["bandwidth"] == 1.4e9
        else c
        for c in results.cells
    ]
    waits = replace(results, cells=cells)
    assert [v.held for v in findings.overlap(waits)] == [False, True, True, True]
    assert "DCD" in next(findings.overlap(waits)).numbers
    *_, last = findings.overlap(changed(results, "choco1", "slow", 0.8, "exposed_wait_ms"))
    assert last.held is False and "CHOCO, sign" in last.numbers


def test_a_late_step_counts_though_nobody_waits(results: Results) -> None:
    """And it is told apart whether the machine had cores left."""
    late = changed(results, "dcd8", "best", 1.2)
    assert [v.held for v in findings.overlap(late)] == [True, False, False, True]
    busy = changed(late, "dcd8", "best", 1.9, "cores_busy")
    verdicts = list(findings.overlap(busy))
    assert [v.held for v in verdicts] == [True, False, True, True] and "DCD, 8 bit" in verdicts[1].numbers
    cell = busy.cell("dcd8", True, *findings.corners(busy)["best"])
    assert cell is not None and f"| DCD, 8 bit | {cell['step_ms']:.0f}{report.LATE} |" in "\n".join(
        report.times(busy)
    )


def test_the_planner_is_right_where_its_model_is(results: Results) -> None:
    found = list(findings.predictions(results))
    assert len(found) == (len(BANDWIDTHS) * len(LATENCIES) - 1) * 2 * (len(METHODS) - 1)  # all but one
    assert max(abs(p.error) for p in found) < 1e-6
    assert [v.held for v in findings.planner(results)] == [True, True]


def test_the_planner_is_judged_apart_where_cores_are_the_limit(results: Results) -> None:
    """With overlap by the whole step, without by what it does beyond one without exchange."""
    wrong = changed(results, "dgc", "far", 1.2)
    verdicts = list(findings.planner(wrong))
    assert [v.held for v in verdicts] == [False, False] and "DGC" in verdicts[0].numbers
    place = findings.corners(results)["far"]
    local = results.cell("local", True, *place)
    assert local is not None

    def with_busy(cell: dict[str, Any], during_exchange: float) -> dict[str, Any]:
        if (cell["method"], cell["bandwidth"], cell["latency"]) != ("dgc", *place):
            return cell
        exchange = cell["step_ms"] - local["step_ms"]
        before = local["cores_busy"] * local["step_ms"]
        share = 0.9 if cell["overlap"] else (before + during_exchange * exchange) / cell["step_ms"]
        return cell | {"cores_busy": share}

    for share, held in ((0.8, False), (0.9, True)):
        cells = [with_busy(c, share) for c in wrong.cells]
        assert [v.held for v in findings.planner(replace(wrong, cells=cells))] == [False, held]


@pytest.mark.parametrize(("factor", "held"), [(0.5, True), (2.0, False)])
def test_ddp_is_the_outside_peer(results: Results, factor: float, held: bool) -> None:
    cells = [c | {"step_ms": c["step_ms"] * factor} if c["method"] == "dcd8" else c for c in results.cells]
    (verdict,) = findings.against_ddp(replace(results, cells=cells))
    assert verdict.held is held and "20 Mbit/s, 5 ms" in verdict.claim


# -- tables and pictures -----------------------------------------------------------------------------------


def test_goodput_is_judged_rate_by_rate(results: Results) -> None:
    ten, hundred = findings.goodput(results)
    assert ten.held and "10 Mbit/s" in ten.claim and "95 %, plain sockets 96 %" in ten.numbers
    assert hundred.held is False and "50 %, plain sockets 60 %" in hundred.numbers


def test_results_come_back_as_they_were_saved(results: Results) -> None:
    results.save()
    assert Results.load(results.folder) == results
    with pytest.raises(UsageError, match="holds no results"):
        Results.load(results.folder / "nowhere")


def test_everything_is_written_and_drawn(
    results: Results, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "DPI", 20)
    results.save()
    assert command.main(["report", "--out", str(results.folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("held") >= 8
    summary = (results.folder / "summary.md").read_text()
    for verdicts in report.verdicts(results).values():
        assert all(f"| {v.claim} | {v.word} |" in summary for v in verdicts)
    assert "made up" in summary and "**95 %** | 50 %" in summary
    for method in METHODS.values():
        for overlap in (True, False):
            cell = results.cell(method.key, overlap, *results.networks()[0])
            assert cell is not None and f"| {method.label} | {cell['step_ms']:.0f} |" in summary
    for name in ("epoch_time", "overlap", "planner", "loss"):
        assert (results.folder / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name


def test_what_is_missing_is_left_out(results: Results, tmp_path: Path) -> None:
    some = [c for c in results.cells if c["method"] in ("allreduce", "ddp")]
    few = replace(results, path=tmp_path / "results.json", cells=some, losses={}, calibration={}, goodput=[])
    names = {path.name for path in report.write(few)}
    assert names <= {"summary.md", "epoch_time.png"} and "summary.md" in names
    only = replace(few, cells=[], goodput=results.goodput, failed=["goodput, two links: exit code 1"])
    assert [path.name for path in report.write(only)] == ["summary.md"]
    assert "exit code 1" in (tmp_path / "summary.md").read_text()


def test_every_method_has_a_look_of_its_own() -> None:
    assert set(figures.STYLES) == set(METHODS)
    assert len({marker for _, _, marker in figures.STYLES.values()}) == len(METHODS)


# -- computing ---------------------------------------------------------------------------------------------


def test_a_paced_step_takes_its_time_and_leaves_the_core() -> None:
    like = models.build("resnet20")
    shapes = sorted(p.shape for p in like.parameters())
    paced, seconds = Paced(like, 0.2, rank=0), 0.2
    assert sorted(p.shape for p in paced.parameters()) == shapes
    order: list[str] = []
    for name, module in paced.named_modules():
        if isinstance(module, compute.PacedLayer):
            module.register_forward_pre_hook(lambda *_, name=name: order.append(f"forward {name}"))
            for p in module.weights:
                p.register_post_accumulate_grad_hook(lambda p, name=name: order.append(f"backward {name}"))
    wall, cpu = time.perf_counter(), time.process_time()
    paced(torch.zeros(1)).backward()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert wall >= seconds and cpu < seconds / 2
    forward = [line.split()[1] for line in order if line.startswith("forward")]
    backward = list(dict.fromkeys(line.split()[1] for line in order if line.startswith("backward")))
    assert len(forward) > 20 and backward == forward[::-1]
    others = Paced(models.build("resnet20"), 0.0, rank=1)
    others(torch.zeros(1)).backward()
    for p, q in zip(paced.parameters(), others.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and not torch.equal(p.grad, q.grad)


def test_hooks_take_no_extra_time_from_a_paced_pass() -> None:
    """What happens between layers is hidden, as beside an accelerator: only the ends of layers count."""
    hook, layer = 0.15, 0.2
    clock = compute.Clock(4 * layer, layers=4)
    start = time.perf_counter()
    for k in range(4):
        time.sleep(hook)
        clock.end_layer(k)
    assert (
        hook + 4 * layer <= time.perf_counter() - start < 4 * (hook + layer)
    )  # the pass begins after a hook


def test_real_work_and_stragglers() -> None:
    work = Compute(model="mlp:hidden=4", batch_size=4, seconds=None, slow=((1, 2.0),))
    loss = work.workload(0).forward_backward((model := work.workload(0)).model)
    assert loss > 0 and all(p.grad is not None for p in model.model.parameters())
    assert "really computed" in str(work) and "host 1 takes 2 times as long" in str(work)
    fixed = replace(work, seconds=0.05)
    times = []
    for rank in (0, 1):
        load = fixed.workload(rank)
        start = time.perf_counter()
        load.forward_backward(load.model)
        times.append(time.perf_counter() - start)
    assert times[0] >= 0.05 and times[1] >= 0.1 and "fixed 50 ms" in str(fixed)


def test_jobs_are_read_as_they_were_written(tmp_path: Path) -> None:
    work = Compute(seconds=None, slow=((3, 1.5),))
    job = Job("measure", tmp_path / "answer", work, ("dcd8", "ddp"), 2.0, {"calibrate": True})
    job.write(tmp_path / "job")
    assert Job.read(tmp_path / "job") == job
    job.reply(1, [1])
    assert not job.answer.exists()
    job.reply(0, [1])
    assert json.loads(job.answer.read_text()) == [1]


# -- the network's settings, the command's errors ----------------------------------------------------------


@pytest.mark.parametrize("rate", [5e6, 100e6, 1.4e9])
def test_the_token_bucket_is_small(rate: float) -> None:
    words = network.shaping(rate)
    burst = int(words[words.index("burst") + 1].removesuffix("b"))
    assert words[words.index("rate") + 1] == f"{rate:.0f}bit"
    assert burst >= 2 * 1500 and 8 * burst / rate < 6e-3  # what may go at once delays or hastens little
    assert burst > 65536 or rate < 500e6  # TCP's largest frames pass whole
    assert 8 * goodput.PAYLOADS[0] / rate > 8 * burst / rate * 10  # a message is not mostly burst


def test_the_relays_own_time_is_taken_off() -> None:
    assert Network(1e9, 5e-3).relay_delay == pytest.approx(5e-3 - network.RELAY_SECONDS)
    assert Network(1e9, 0.0).relay_delay == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "dcd"], "Did you mean"),
        (["--hosts", "1"], "2 to"),
        (["--slow", "9:2"], "HOST:FACTOR"),
        (["--slow", "fast"], "HOST:FACTOR"),
        (["--bandwidths", "100"], "100Mbit"),
        (["--model", "resnet21"], "resnet"),
        (["--model", "lstm"], "for images"),
        (["--compute", "0ms"], "above 0"),
        (["--compute", "99999999999s"], "up to 60 s"),
        (["--latencies", "99999999999s"], "up to 60 s"),
        (["--bandwidths", "1bit"], "10 kbit/s or more"),
        (["--slow", "1:inf"], "1 to 1000"),
        (["--slow", "1:2", "1:3"], "named twice"),
    ],
)
def test_what_cannot_be_swept(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        command.main(["sweep", "--out", str(tmp_path), *words])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_what_cannot_be_benchmarked(tmp_path: Path) -> None:
    for words, says in ((["--congestion", "none-such"], "hosts may use"), (["--settings", "x"], "there is")):
        with pytest.raises(UsageError, match=says):
            command.main(["goodput", "--out", str(tmp_path), *words])


def test_without_root_or_tools_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="sudo"):
        requirements.check()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements.shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(UsageError, match="needs tc, not found here: install iproute2"):
        requirements.check()


def test_results_are_not_overwritten_by_accident(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "check", lambda *outputs: None)
    for name in ("results.json", "loss.png", "log.txt"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(UsageError, match=f"{name} already: give another --out, or --overwrite"):
            command.main(["goodput", "--out", str(folder)])
        assert (folder / name).read_text() == "mine"
    with pytest.raises(WriteError, match="cannot be written"):
        command.main(["goodput", "--out", str(tmp_path / "log" / "log.txt")])


@pytest.mark.parametrize("quick", [True, False])
def test_the_estimates_keep_their_promise(quick: bool, tmp_path: Path) -> None:
    """At most an hour, and 5 minutes with --quick, on 2 cores."""
    args = command._parser().parse_args(["all", "--out", str(tmp_path), *(["--quick"] if quick else [])])
    sweep, benchmark = command._sweep(args), command._goodput(args)
    assert sweep is not None and benchmark is not None
    if (os.cpu_count() or 1) >= 2:
        assert sweep.estimate() + benchmark.estimate() < (5 if quick else 60) * 60
    faster = replace(sweep, networks=tuple(Network(1e9, 0.0) for _ in sweep.networks))
    assert faster.estimate() < sweep.estimate()


# -- hosts -------------------------------------------------------------------------------------------------


def possible() -> bool:
    try:
        requirements.check()
    except UsageError:
        return False
    return find_mpirun() is not None


needs_root = pytest.mark.skipif(not possible(), reason="no root, tools or namespaces for a laboratory")


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def marked(token: str) -> list[int]:
    """The processes that were started with this in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and token.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def start(what: str, token: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.mpi.laboratory", what],
        cwd=ROOT,
        env={**os.environ, "NETLAB_TEST": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.mpi
@needs_root
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_however_it_ends_nothing_is_left(number: signal.Signals, code: int) -> None:
    before, token = interfaces(), f"netlab-test-{os.getpid()}-{number}"
    first, second = start("hold", token), start("hold", f"{token}-other")
    try:
        for lab in (first, second):
            assert lab.stdout is not None and lab.stdout.readline() == "holding\n", lab.stderr
        # Both have made an interface and a file of the same name; out here nobody sees them.
        assert interfaces() == before and "netlabtest" not in os.listdir(isolation.SCRATCH)
        first.send_signal(number)
        assert first.wait(20) == code
        deadline = time.monotonic() + 20
        while [pid for pid in marked(token) if pid not in marked(f"{token}-other")]:
            assert time.monotonic() < deadline, "processes are left"
            time.sleep(0.05)
        assert second.poll() is None and marked(f"{token}-other")
    finally:
        for lab in (first, second):
            lab.kill()
            lab.communicate()
    assert interfaces() == before and "netlabtest" not in os.listdir(isolation.SCRATCH)


@needs_root
def test_results_cannot_lie_where_the_laboratory_mounts_its_own() -> None:
    with pytest.raises(UsageError, match="write it elsewhere"):
        requirements.check(isolation.SCRATCH / "runs")


@pytest.mark.mpi
@needs_root
def test_hosts_have_the_network_that_was_asked_for() -> None:
    lab = start("facts")
    out, err = lab.communicate(timeout=240)
    assert lab.returncode == 0, err
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert facts["ranks"] == [["0", "h0"], ["1", "h1"], ["2", "h2"]]
    assert facts["round_trip"] >= 2 * laboratory.LATENCY - 2 * network.RELAY_SECONDS
    burst = network.burst(laboratory.BANDWIDTH)  # of each sender
    assert facts["transfer"] >= 8 * (laboratory.PAYLOAD - burst) / laboratory.BANDWIDTH
    assert facts["two_to_one"] >= 8 * 2 * (laboratory.PAYLOAD - burst) / laboratory.BANDWIDTH
    assert facts["left"] == ["lo"]


def run_in_lab(*words: str) -> subprocess.CompletedProcess[str]:
    module = [sys.executable, "-m", "experiments.netlab", "run", *words]
    return subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.mark.mpi
@needs_root
def test_a_command_of_ones_own_runs_on_the_network() -> None:
    program = "import os, gossip; w = gossip.world(); print(w.size, os.uname().nodename, w.local_size)"
    words = ["--hosts", "2", "--bandwidth", "50Mbit", "--latency", "1ms", "--", sys.executable, "-c"]
    done = run_in_lab(*words, program)
    assert done.returncode == 0 and sorted(done.stdout.split("\n")) == ["", "2 h0 1", "2 h1 1"], done
    done = run_in_lab(*words, "import sys; sys.exit(7)")
    assert done.returncode == 1 and "exit code 7" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bandwidth", "50Mbit", "--latency", "1ms"], "there is no command to run"),
        (["--bandwidth", "50Mbit", "--latency", "90s", "--", "true"], "--latency 90s"),
        (["--bandwidth", "50Mbit", "--latency", "1ms", "--hosts", "0", "--", "true"], "--hosts 0"),
    ],
)
def test_what_cannot_run_is_said(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        command.main(["run", *words])


@pytest.mark.slow
@pytest.mark.mpi
@needs_root
def test_a_small_sweep(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--bandwidths", "50Mbit", "--latencies", "1ms", "--compute", "40ms"]
    words += ["--methods", "allreduce", "dcd8", "dgc", "ddp", "--seconds", "0.5", "--loss-steps", "2"]
    module = [sys.executable, "-m", "experiments.netlab", "sweep", "--out", str(tmp_path), *words]
    done = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = Results.load(tmp_path)
    assert not found.failed and set(found.losses) == {"allreduce", "dcd8", "dgc"}
    assert {(c["method"], c["overlap"]) for c in found.cells} == {
        *(("local", True), ("ddp", True)),
        *((key, overlap) for key in ("allreduce", "dcd8", "dgc") for overlap in (True, False)),
    }
    for c in found.cells:
        assert (
            c["step_ms"] >= 40
            and 0 <= c["cores_busy"] <= 1
            and (c["method"] == "local" or c["wire_bytes"] > c.get("bytes_sent", 0))
        )
    net: nn.Module = models.build("resnet20")
    values = sum(p.numel() for p in net.parameters())
    exact = found.cell("allreduce", False, 50e6, 1e-3)
    assert exact is not None and exact["bytes_sent"] == 4 * values  # 2 (n − 1)/n · 4 d
