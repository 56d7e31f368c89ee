"""Sweeps: the grid in a file, and that every run is done once, whatever happens to it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.runs import Run
from experiments.sweep import command as sweep
from experiments.sweep import job, runner, slurm
from experiments.sweep.grid import Point, SweepFile
from gossip.errors import UsageError

ROOT = Path(__file__).parents[2]
SMALL = """
model = "mlp:hidden=8"
dataset = "synthetic:train=64,test=20"
batch-size = 8
nodes = [2]
seed = [1, 2]
[[runs]]
algorithm = "allreduce"
[[runs]]
algorithm = "dcd"
compressor = ["qsgd:bits=8", "per-tensor:(qsgd:bits=4,norm=l2,block=tensor)"]
lr = 0.05
[full]
epochs = 300
"""


def write(path: Path, text: str = SMALL) -> Path:
    path.write_text(text)
    return path


# -- the grid --------------------------------------------------------------------------------------


def test_lists_and_blocks_span_the_grid_seed_by_seed(tmp_path: Path) -> None:
    points = SweepFile.read(write(tmp_path / "a.toml")).points()
    names = [
        "allreduce-nodes2-seed{}",
        "dcd-qsgd-bits8-nodes2-lr0.05-seed{}",
        "dcd-per-tensor-qsgd-bits4-norml2-blocktensor-nodes2-lr0.05-seed{}",
    ]
    assert [point.name for point in points] == [name.format(seed) for seed in (1, 2) for name in names]
    assert [point.args.lr for point in points[:3]] == [0.1, 0.05, 0.05]
    assert all(point.nodes == 2 and point.args.batch_size == 8 for point in points)


def test_seeds_full_and_overrides(tmp_path: Path) -> None:
    file = SweepFile.read(write(tmp_path / "a.toml"), full=True)
    points = file.points(seeds=[7], overrides={"data_dir": "/d", "lr": 0.5})
    assert {p.args.seed for p in points} == {7} and {p.args.epochs for p in points} == {300}
    assert {p.args.data_dir for p in points} == {"/d"} and {p.args.lr for p in points} == {0.5}
    assert points[1].name == "dcd-qsgd-bits8-nodes2-lr0.5-seed7"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr = []", "lr is an empty list"),
        ("lrr = 1", "unknown key 'lrr'"),
        ('algorithm = ["dcd", "dcdd"]', r"a.toml: algorithm 'dcdd'.*did you mean 'dcd'"),
        ("full = 3", r"full is a table: write \[full\]"),
        ("about = 3", r"about is a table"),
        ("batch-size = 8\nbatch_size = 16", "batch_size and batch-size are one setting"),
        ("seed = -1", "seed -1: give a whole number, 0 or more"),
        ('compressor = ""', "compressor"),
        ("[runz]\nlr = 1", r"unknown table \[runz\]; did you mean \[runs\]"),
        ("[runs]\nlr = 1", r"write runs as one or more \[\[runs\]\]"),
        ("out = 'x'", "'out' is about the command"),
        ("nesterov = true\nmomentum = 0", "a.toml: --nesterov needs"),
    ],
)
def test_a_wrong_file_is_named_before_anything_runs(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SweepFile.read(write(tmp_path / "a.toml", text)).points()


def test_two_runs_never_share_a_name(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[[runs]]\nmodel = 'mlp:hidden=8'\n[[runs]]\nmodel = 'mlp:8'\n")
    assert len(SweepFile.read(file).points()) == 2
    file.write_text(
        "dataset = 'text'\n[[runs]]\ndata-file = 'a/train.txt'\n[[runs]]\ndata-file = 'a-train.txt'\n"
    )
    with pytest.raises(UsageError, match="would both be called dpsgd-data-filea-train"):
        SweepFile.read(file).points()


def test_full_needs_settings(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --full out"):
        SweepFile.read(write(tmp_path / "a.toml", "lr = 1"), full=True)


# -- running ---------------------------------------------------------------------------------------


class Sweep:
    """A sweep of fake runs in `out`; `said` is what it printed."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.said = path / "out", []  # type: ignore[var-annotated]
        self.out.mkdir()
        self.points = SweepFile.read(write(path / "a.toml")).points(seeds=[1])
        self._monkeypatch = monkeypatch

        def fake(point: Point, out: Path, mpirun: str | None, *extra: str) -> list[str]:
            line = job.command(point, out, mpirun, *extra)
            at = line.index("experiments.train")
            return [*line[: at - 1], str(ROOT / "tests/experiments/fake_train.py"), *line[at + 1 :]]

        monkeypatch.setattr(runner, "command", fake)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(self, jobs: int = 2, **behaviours: str) -> int:
        self._monkeypatch.setenv("FAKE", json.dumps(behaviours))
        missing = [p for p in self.points if runner.state(p, self.out, False) in ("new", "broken off")]
        return runner.Runner(self.out, jobs, False, self.said.append).run(missing)

    def starts(self) -> list[str]:
        file = self.out / "starts"
        return file.read_text().splitlines() if file.exists() else []

    def states(self) -> list[str]:
        return [runner.state(point, self.out, False) for point in self.points]

    def asked(self, text: str, mpi: bool = False) -> tuple[str, str]:
        """The first run's state for the sweep file `text`, and what is said of its changes."""
        path = self.out.parent / "b.toml"
        point = SweepFile.read(write(path, text)).points(seeds=[1])[0]
        return runner.state(point, self.out, mpi), str(runner.changed_error([point], self.out, mpi))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    return Sweep(tmp_path, monkeypatch)


def test_every_run_is_done_once_and_divergence_is_a_result(fake: Sweep) -> None:
    assert fake.run(bits4="diverge") == 0
    assert fake.states() == ["finished", "finished", "diverged"]
    assert any("[3/3]" in line for line in fake.said) and any("diverged at step 7" in s for s in fake.said)
    assert (fake.out / fake.points[0].name / "log.txt").read_text() == "as in any run\n"
    assert fake.run() == 0 and len(fake.starts()) == 3


def test_a_crash_is_a_failure_with_its_last_words_and_is_done_again(fake: Sweep) -> None:
    assert fake.run(allreduce="crash") == 1
    assert fake.states() == ["broken off", "finished", "finished"]
    assert any("FAILED" in line and "something went wrong" in line for line in fake.said)
    assert fake.run() == 0 and fake.states()[0] == "finished"
    assert fake.starts().count(f"{fake.points[0].name} --overwrite") == 2


def checkpointed(fake: Sweep) -> str:
    """The first run, broken off after a checkpoint."""
    fake.run(allreduce="crash")
    name = fake.points[0].name
    (fake.out / name / "checkpoint/step-000005").mkdir(parents=True)
    (fake.out / name / "checkpoint/step-000005/complete").write_text("{}")
    return name


def test_a_run_with_a_checkpoint_goes_on(fake: Sweep) -> None:
    name = checkpointed(fake)
    assert fake.run() == 0 and fake.starts()[-1] == f"{name} --resume"


def test_what_cannot_go_on_has_failed_and_keeps_its_checkpoints(fake: Sweep) -> None:
    name = checkpointed(fake)
    starts = len(fake.starts())
    assert fake.run(allreduce="fail to resume") == 1
    assert fake.starts()[starts:] == [f"{name} --resume"] and fake.states()[0] == "broken off"
    assert (fake.out / name / "checkpoint/step-000005/complete").exists()
    assert "FAILED" in fake.said[-1] and "remove that folder and resume again" in fake.said[-1]


def test_a_crash_after_resuming_keeps_the_checkpoints(fake: Sweep) -> None:
    name = checkpointed(fake)
    assert fake.run(allreduce="crash") == 1
    assert fake.starts()[-1] == f"{name} --resume"
    assert (fake.out / name / "checkpoint/step-000005/complete").exists()
    log = (fake.out / name / "log.txt").read_text()
    assert log.count("something went wrong") == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALL.replace("batch-size = 8", "batch-size = 16"), "was run with batch-size 8, not 16"),
        (f"epochs = 3\n{SMALL}", "was run with epochs 20, not 3.0"),
        (f"steps = 9\n{SMALL}", "was run with steps None, not 9"),
    ],
)
def test_a_checkpoint_of_other_settings_does_not_go_on(fake: Sweep, text: str, says: str) -> None:
    """Nor of another length: the learning rates of its steps were those of the old one."""
    checkpointed(fake)
    found, said = fake.asked(text)
    assert found == "changed" and says in said


def test_a_checkpoint_goes_on_with_what_resuming_lets_one_change(fake: Sweep) -> None:
    checkpointed(fake)
    assert fake.asked(f"log-every = 3\n{SMALL}")[0] == "broken off"


def test_a_finished_run_of_other_settings_is_never_mixed_in(fake: Sweep) -> None:
    fake.run()
    found, said = fake.asked(SMALL.replace("batch-size = 8", "batch-size = 16"))
    assert found == "changed" and "was run with batch-size 8, not 16" in said
    elsewhere = "threads = 2\ndata-dir = '/d'\noverlap = false\nprogress = 'thread'\norder = 'fifo'\n"
    assert fake.asked(f"{elsewhere}{SMALL}")[0] == "finished"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("virtual", [True, False])
def test_mpi_ranks_and_virtual_nodes_are_different_runs(fake: Sweep, finished: bool, virtual: bool) -> None:
    name = checkpointed(fake)
    before = "broken off"
    if finished:
        fake.run()
        before = "finished"
    assert fake.asked(SMALL, mpi=virtual)[0] == before  # a run from before this was written down
    (fake.out / name / "env.json").write_text(json.dumps({"virtual_nodes": virtual}))
    assert fake.asked(SMALL, mpi=not virtual)[0] == before
    found, said = fake.asked(SMALL, mpi=virtual)
    which = "virtual nodes, not MPI ranks" if virtual else "MPI ranks, not virtual nodes"
    assert found == "changed" and f"was run with {which}\n" in said


def test_runs_run_side_by_side(fake: Sweep) -> None:
    fake.points = fake.points[:2]
    assert fake.run(jobs=2, seed="wait for the other") == 0
    summaries = [Run.read(fake.out / point.name).summary or {} for point in fake.points]
    assert [summary["test_accuracy"] for summary in summaries] == [100.0, 100.0]


def damage(fake: Sweep, name: str) -> None:
    (fake.out / name).mkdir()
    (fake.out / name / "config.toml").touch()
    (fake.out / name / "summary.json").write_text("{")


@pytest.mark.parametrize(
    ("prevent", "says"),
    [
        (damage, "summary.json is damaged"),
        (lambda fake, name: (fake.out / ".locks" / name).mkdir(parents=True), "Is a directory"),
        (lambda fake, name: (fake.out / f"{name}.log").mkdir(), "irectory"),
    ],
)
def test_what_keeps_a_run_from_starting_is_no_matter_to_the_others(
    fake: Sweep, prevent: Callable[[Sweep, str], None], says: str
) -> None:
    name = fake.points[0].name
    prevent(fake, name)
    sweep = runner.Runner(fake.out, 1, False, fake.said.append)
    assert sweep.run(fake.points) == 1 and sweep.failed == [name]
    assert any(f"[1/3] {name} FAILED" in line and says in line for line in fake.said)
    assert fake.starts() == [f"{point.name} --overwrite" for point in fake.points[1:]]
    with job.locked(fake.out / ".locks" / fake.points[1].name) as lock:
        assert lock is not None


def test_without_mpirun_nothing_is_started(fake: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> str:
        raise UsageError("there is no mpirun here")

    monkeypatch.setattr(runner, "find_mpirun", none_here)
    with pytest.raises(UsageError, match="no mpirun here"):
        runner.Runner(fake.out, 2, True, fake.said.append).run(fake.points)
    assert not fake.said and not (fake.out / ".locks").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_nothing_is_started(fake: Sweep, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UsageError, match=r"no file can be locked there .* --out DIR"):
        fake.run()
    assert not fake.starts() and not fake.said


def test_a_run_of_another_sweep_is_left_to_it(fake: Sweep) -> None:
    name = fake.points[0].name
    with job.locked(fake.out / ".locks" / name) as lock:
        assert lock is not None
        assert fake.run() == 0
    assert not any(name in line for line in fake.starts()) and len(fake.starts()) == 2


def test_a_run_that_outlives_its_sweep_stays_locked(tmp_path: Path) -> None:
    path = tmp_path / ".locks" / "a"
    with job.locked(path) as lock:
        assert lock is not None
        child = job.Job(["sleep", "600"], tmp_path / "log", 1, lock)
    with job.locked(path) as lock:
        assert lock is None
    child.end(patience=10)
    with job.locked(path) as lock:
        assert lock is not None


@pytest.fixture
def signal_soon(fake: Sweep) -> Iterator[None]:
    """SIGTERM to this process once the first run has its child."""

    def send() -> None:
        deadline = time.monotonic() + 60
        while not list(fake.out.glob("*/child")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    yield
    thread.join()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
@pytest.mark.parametrize("manners", ["obey", "ignore"])
@pytest.mark.usefixtures("signal_soon")
def test_an_interrupted_sweep_leaves_nothing_behind(
    fake: Sweep, monkeypatch: pytest.MonkeyPatch, manners: str
) -> None:
    if manners == "ignore":
        monkeypatch.setattr(runner, "GRACE_SECONDS", 0.3)
        monkeypatch.setattr(job.Job.end, "__defaults__", (0.3,))
    assert fake.run(jobs=1, allreduce=manners) == 128 + signal.SIGTERM
    child = int((fake.out / fake.points[0].name / "child").read_text())
    assert not alive(child)
    ended = f"ended without a checkpoint of where they were: {fake.points[0].name}"
    assert (ended in fake.said) is (manners == "ignore")
    assert len(fake.starts()) == 1 and fake.states() == ["broken off", "new", "new"]
    assert fake.run() == 0 and fake.states() == ["finished"] * 3


def test_the_command_names_what_is_missing(
    tmp_path: Path, fake: Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = Namespace(
        file=tmp_path / "a.toml", full=False, seeds=[1], set=[], out=fake.out, only="dcd*", list=True,
        emit_slurm=False, jobs=2, mpi=False,
    )  # fmt: skip
    assert sweep.run(args) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["new", "new"]
    assert sweep.run(Namespace(**vars(args) | {"list": False})) == 0
    assert "2 new" in (said := capsys.readouterr().out) and "python -m gossip compare" in said
    with pytest.raises(UsageError, match="there is no such run"):
        sweep.run(Namespace(**vars(args) | {"only": "nothing"}))


def test_all_changed_runs_are_named_before_anything_runs(
    tmp_path: Path, fake: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.points = fake.points[:2]
    fake.run()
    write(tmp_path / "a.toml", SMALL.replace("batch-size = 8", "batch-size = 16"))
    args = Namespace(
        file=tmp_path / "a.toml", full=False, seeds=[1], set=[], out=fake.out, only=None, list=True,
        emit_slurm=False, jobs=2, mpi=False,
    )  # fmt: skip
    assert sweep.run(args) == 0
    states = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert states == ["changed", "changed", "new"]
    with pytest.raises(UsageError) as refused:
        sweep.run(Namespace(**vars(args) | {"list": False}))
    for point in fake.points:
        assert f"{fake.out / point.name} was run with batch-size 8, not 16" in str(refused.value)
    assert len(fake.starts()) == 2


def test_cores_decide_how_many_run_at_a_time(fake: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(sweep.torch.cuda, "is_available", lambda: False)
    assert sweep.default_jobs(fake.points, mpi=False) == 8
    assert sweep.default_jobs(fake.points, mpi=True) == 4
    monkeypatch.setattr(sweep.torch.cuda, "is_available", lambda: True)
    assert sweep.default_jobs(fake.points, mpi=False) == 1


# -- for real --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mpi", [False, pytest.param(True, marks=pytest.mark.mpi)])
def test_the_training_script_runs_as_asked(tmp_path: Path, mpi: bool) -> None:
    file = SweepFile.read(write(tmp_path / "a.toml", SMALL.replace("[[runs]]", "epochs = 1\n[[runs]]", 1)))
    point = file.points(seeds=[1])[0]
    said: list[str] = []
    assert runner.Runner(tmp_path / "out", 1, mpi, said.append).run([point]) == 0, said
    run = Run.read(tmp_path / "out" / point.name)
    assert runner.state(point, tmp_path / "out", mpi) == "finished"
    assert run.finished and run.summary is not None and run.summary["virtual_nodes"] is not mpi
    assert "steps in" in (run.path / "log.txt").read_text()


# -- Slurm -----------------------------------------------------------------------------------------

STUB = """#!/bin/bash
echo "$@" > {seen}
trap 'exit 138' USR1
touch {ready}
for i in $(seq 600); do [ -e {done} ] && exit 0; sleep 0.05; done
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("ends", ["by itself", "by a signal"])
def test_the_slurm_script_runs_a_task_and_requeues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # no virtual environment to activate
    points = SweepFile.read(write(tmp_path / "a.toml")).points()
    args = Namespace(
        file=tmp_path / "a.toml",
        full=False,
        mpi=True,
        seeds=[1, 2],
        set=[("data-dir", "/d e"), ("overlap", False)],
    )
    path = slurm.write(args, points, tmp_path / "out")
    script = path.read_text()
    assert "#SBATCH --array=0-5" in script and "#SBATCH --ntasks=2" in script

    seen, ready, done, requeued = (tmp_path / name for name in ("seen", "ready", "done", "requeued"))
    executable(tmp_path / "python", STUB.format(seen=seen, ready=ready, done=done))
    executable(tmp_path / "scontrol", f'#!/bin/bash\necho "$@" > {requeued}\n')
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_JOB_ID": "17"}
    task = subprocess.Popen(["bash", str(path)], env=environment)
    while not ready.exists():
        time.sleep(0.02)
        assert task.poll() is None
    done.touch() if ends == "by itself" else task.send_signal(signal.SIGTERM)
    code = task.wait(60)
    assert f"--only {points[4].name}" in seen.read_text() and '--set data-dir="/d e"' in seen.read_text()
    assert "--seeds 1,2" in seen.read_text() and "--mpi" in seen.read_text()
    assert "--set overlap=false" in seen.read_text()
    assert code == (0 if ends == "by itself" else 138)
    assert requeued.exists() is (ends == "by a signal")
    if requeued.exists():
        assert requeued.read_text().split() == ["requeue", "17_4"]


def test_slurm_is_told_whole_paths_with_spaces_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    points = SweepFile.read(write(tmp_path / "my sweep.toml")).points()
    args = Namespace(file=Path("my sweep.toml"), full=False, mpi=False, seeds=[], set=[])
    script = slurm.write(args, points, Path("100 % #1")).read_text()
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    read = [shlex.split(option.replace("\\#", "#")) for option in options]
    assert ["--job-name=my sweep"] in read
    assert [f"--output={tmp_path}/100 %% #1/slurm-%A_%a.txt"] in read
    assert not any("#" in option.replace("\\#", "") for option in options)  # a comment, even in quotes
