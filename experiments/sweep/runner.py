"""Running what is missing of a grid: several runs at a time, each once, and every ending accounted for.

A run counts as done when its folder has a summary, whether it came to its end or diverged. What was broken
off goes on from its last checkpoint, and starts anew where there is none, or none that can be used.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from experiments import config
from experiments.progress import duration
from experiments.runs import FOR_SPEED, IMMATERIAL, Run
from experiments.sweep.grid import Point
from experiments.sweep.job import Job, command, locked
from gossip.errors import CheckpointError, UsageError

POLL_SECONDS = 0.2
GRACE_SECONDS = 60.0
"""How long runs that were asked to stop may take for their checkpoints."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

State = Literal["finished", "diverged", "broken off", "new"]


def state(point: Point, out: Path) -> State:
    """How far `point`'s run in `out` is.

    Raises:
        UsageError: it has finished, or has a checkpoint, but with other settings than the sweep now asks for.
    """
    folder = out / point.name
    if not (folder / "config.toml").exists():
        return "new"
    run = Run.read(folder)
    if run.summary is None and not _resumable(folder):
        return "broken off"
    if changed := _changes(point, run):
        raise UsageError(
            f"{folder} was run with {', '.join(f'{k} {was}, not {now}' for k, was, now in changed)}. "
            "Take another --out for the changed sweep, or delete that folder to have it run again."
        )
    if run.summary is None:
        return "broken off"
    return "diverged" if run.diverged else "finished"


def _resumable(folder: Path) -> bool:
    return any(folder.glob("checkpoint/*/complete"))


def _changes(point: Point, run: Run) -> list[tuple[str, Any, Any]]:
    """Key, value in the folder and value in the sweep, of every setting that makes it another run.

    A run that is not at its end may go on with whatever ``--resume`` lets one change.
    """
    own = vars(config.parse(config.flags(run.config, run.path / "config.toml")))
    asked = {**vars(point.args), "nodes": point.nodes}
    free = (*config.ABOUT_THE_COMMAND, *(config.MAY_CHANGE if run.summary is None else ()))
    kept = IMMATERIAL | FOR_SPEED | {name.replace("_", "-") for name in free}
    return [
        (name.replace("_", "-"), own.get(name), value)
        for name, value in asked.items()
        if name.replace("_", "-") not in kept and own.get(name) != value
    ]


class Interrupts:
    """Counts the signals that ask this process to stop, while its ``with`` block runs."""

    def __init__(self) -> None:
        self.count, self.number = 0, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count, self.number = self.count + 1, number


@dataclass(eq=False)
class Attempt:
    """A run under way; closing `held` lets go of its lock."""

    point: Point
    job: Job
    resumes: bool
    held: contextlib.ExitStack
    started: float = field(default_factory=time.monotonic)


class Runner:
    """Runs the points that are not done yet, `jobs` at a time.

    Args:
        out: the sweep's folder.
        mpi: an MPI rank per node, under mpirun; else virtual nodes, one process per run.
        say: takes a line for the terminal.
    """

    def __init__(self, out: Path, jobs: int, mpi: bool, say: Callable[[str], None]) -> None:
        self._out, self._jobs, self._mpi, self._say = out, jobs, mpi, say
        self._running: list[Attempt] = []
        self._total = self._over = 0
        self.failed: list[str] = []
        self.elsewhere: list[str] = []

    def run(self, points: Sequence[Point]) -> int:
        """Returns the exit code: 0, 1 if a run failed, or that of the signal that ended the sweep."""
        waiting = deque((point, False) for point in points)
        self._total, began = len(points), time.monotonic()
        with Interrupts() as interrupts:
            try:
                while (waiting or self._running) and not interrupts.count:
                    while waiting and len(self._running) < self._jobs:
                        self._start(*waiting.popleft())
                    for attempt in self._ended():
                        if not self._settle(attempt):
                            waiting.appendleft((attempt.point, True))
                        elif waiting or self._running:
                            left = (time.monotonic() - began) / self._over * (self._total - self._over)
                            self._say(f"  about {duration(left)} to go")
                    time.sleep(POLL_SECONDS)
                if interrupts.count:
                    self._stop(interrupts)
                    return 128 + interrupts.number
            finally:
                for attempt in self._running:
                    attempt.job.end()
        return 1 if self.failed else 0

    def _start(self, point: Point, anew: bool) -> None:
        """Start `point`'s run, unless it runs elsewhere or has been finished there meanwhile."""
        held = contextlib.ExitStack()
        lock = held.enter_context(locked(self._out / ".locks" / point.name))
        found = state(point, self._out) if lock else "new"
        if lock is None or found in ("finished", "diverged"):
            held.close()
            self._total -= 1
            if lock is None:
                self.elsewhere.append(point.name)
            return
        folder, log = self._out / point.name, self._log(point)
        resumes = not anew and found == "broken off" and _resumable(folder)
        if not (resumes or anew):
            log.unlink(missing_ok=True)
            (folder / "log.txt").unlink(missing_ok=True)
        flag = "--resume" if resumes else "--overwrite"
        job = Job(command(point, self._out, self._mpi, flag), log, point.threads, lock)
        self._running.append(Attempt(point, job, resumes, held))

    def _ended(self) -> list[Attempt]:
        ended = [attempt for attempt in self._running if attempt.job.poll() is not None]
        self._running = [attempt for attempt in self._running if attempt not in ended]
        return ended

    def _settle(self, attempt: Attempt) -> bool:
        """Account for a run that has ended; False if it is to be started anew."""
        point, code = attempt.point, attempt.job.poll()
        attempt.job.end(patience=0)
        found = state(point, self._out)
        log = self._keep_log(point)
        attempt.held.close()
        done = found in ("finished", "diverged")
        if not done and attempt.resumes and code == CheckpointError.exit_code:
            self._say(f"{point.name} could not be continued from its checkpoint; it starts anew")
            return False
        self._over += 1
        took = duration(time.monotonic() - attempt.started)
        head = f"[{self._over}/{self._total}] {point.name}"
        if done:
            self._say(f"{head}: {self._result(point)}, {took}")
        else:
            self.failed.append(point.name)
            last = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            what = f"{head} FAILED after {took}, exit code {code}; {log} ends with"
            self._say("\n    ".join([what, *last]))
        return True

    def _result(self, point: Point) -> str:
        run = Run.read(self._out / point.name)
        summary = run.summary or {}
        if run.diverged:
            return f"diverged at step {summary['diverged_step']}"
        return f"{run.headline.title} {summary[run.headline.key]:.2f}{run.headline.suffix}"

    def _stop(self, interrupts: Interrupts) -> None:
        """Let the runs write checkpoints; a second signal, or patience at its end, ends them at once."""
        asked = interrupts.count
        names = ", ".join(attempt.point.name for attempt in self._running)
        self._say(f"stopping, with checkpoints where steps were made: {names or 'nothing runs'}.")
        self._say("Once more to end at once.")
        for attempt in self._running:
            attempt.job.ask_to_stop()
        deadline = time.monotonic() + GRACE_SECONDS
        while self._running and interrupts.count == asked and time.monotonic() < deadline:
            for attempt in self._ended():
                self._put_away(attempt)
            time.sleep(POLL_SECONDS)
        for attempt in self._running:
            self._put_away(attempt)
        self._running = []
        self._say("the same command again goes on from here")

    def _put_away(self, attempt: Attempt) -> None:
        attempt.job.end()
        self._keep_log(attempt.point)
        attempt.held.close()

    def _log(self, point: Point) -> Path:
        return self._out / f"{point.name}.log"

    def _keep_log(self, point: Point) -> Path:
        """Add what the run said to log.txt in its folder, if it got as far as to have one."""
        log, kept = self._log(point), self._out / point.name / "log.txt"
        if not kept.parent.is_dir():
            return log
        if log.exists():
            with open(kept, "a") as file:
                file.write(log.read_text(errors="replace"))
            log.unlink()
        return kept
