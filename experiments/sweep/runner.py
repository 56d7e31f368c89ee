"""Running what is missing of a grid: several runs at a time, each once, and every ending accounted for.

A run counts as done when its folder has a summary, whether it came to its end or diverged. What was broken
off goes on from its last checkpoint, and starts anew where there is none. A sweep never deletes a checkpoint:
a run that cannot go on from its own has failed, and its last words say what to remove.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from experiments import config
from experiments.progress import duration
from experiments.runs import Run
from experiments.sweep.grid import Point, options_of
from experiments.sweep.job import Job, command, find_mpirun, locked
from gossip.errors import UsageError

POLL_SECONDS = 0.2
GRACE_SECONDS = 60.0
"""How long runs that were asked to stop may take for their checkpoints."""

FRAMED = re.compile(r"^-{20,}$.*?^-{20,}$", re.MULTILINE | re.DOTALL)
"""What Open MPI itself says when a rank has ended the job; it says so after the rank's own last words."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

State = Literal["finished", "diverged", "broken off", "changed", "new"]


def state(point: Point, out: Path, mpi: bool) -> State:
    """How far `point`'s run in `out` is; "changed": it was made, or begun, as another run (see `changes`).

    Raises:
        UsageError: a file in its folder is damaged.
    """
    folder = out / point.name
    if not (folder / "config.toml").exists():
        return "new"
    run = Run.read(folder)
    if run.summary is None and not _resumable(folder):
        return "broken off"
    if changes(point, run, mpi):
        return "changed"
    if run.summary is None:
        return "broken off"
    return "diverged" if run.diverged else "finished"


def _resumable(folder: Path) -> bool:
    return any(folder.glob("checkpoint/*/complete"))


def changes(point: Point, run: Run, mpi: bool) -> list[str]:
    """What makes `run` another one than the sweep now asks for with `point`: ``batch-size 8, not 16``.

    A run that is not at its end may go on with whatever ``--resume`` lets one change, except for its length:
    the learning rates of the steps it has made were those of the old one.
    """
    free = config.INCIDENTAL if run.summary is None else ()
    found = [f"{key} {was}, not {value}" for key, was, value in point.differences(options_of(run), free)]
    virtual = point.nodes > 1 and not mpi
    if run.settings.get("virtual-nodes", virtual) != virtual:
        found.append("MPI ranks, not virtual nodes" if virtual else "virtual nodes, not MPI ranks")
    return found


def changed_error(points: Sequence[Point], out: Path, mpi: bool) -> UsageError:
    """What there is to say about `points` whose state is "changed"."""
    runs = [(point, Run.read(out / point.name)) for point in points]
    lines = [f"{run.path} was run with {'; '.join(changes(point, run, mpi))}" for point, run in runs]
    remedy = "Take another --out for the changed sweep, or delete what is to run again."
    return UsageError("\n".join([*lines, remedy]))


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
        """Returns the exit code: 0, 1 if a run failed, or that of the signal that ended the sweep.

        Raises:
            UsageError: there is no mpirun, or no locks in the sweep's folder; nothing has been started.
        """
        waiting = deque(points)
        self._total, began = len(points), time.monotonic()
        self._mpirun = find_mpirun() if self._mpi and points else None
        with Interrupts() as interrupts:
            try:
                while (waiting or self._running) and not interrupts.count:
                    while waiting and len(self._running) < self._jobs:
                        self._start(waiting.popleft())
                    for attempt in self._ended():
                        self._settle(attempt)
                        if waiting or self._running:
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

    def _start(self, point: Point) -> None:
        """Start `point`'s run, unless it runs elsewhere or has been finished there meanwhile.

        What keeps it from starting is its own failure: the others go on.
        """
        with contextlib.ExitStack() as held:
            try:
                lock = held.enter_context(locked(self._out / ".locks" / point.name))
            except OSError as error:
                self._fail(point, f"FAILED: {error}")
                return
            if lock is None:
                self.elsewhere.append(point.name)
                self._total -= 1
                return
            try:
                job = self._job(point, lock)
            except (UsageError, OSError) as error:
                self._fail(point, f"FAILED: {error}")
                return
            if job is None:
                self._total -= 1
            else:
                self._running.append(Attempt(point, job, held.pop_all()))

    def _job(self, point: Point, lock: IO[str]) -> Job | None:
        """The process of `point`'s run, started; None if there is nothing left to do."""
        if self._is_done(point):
            return None
        folder, log = self._out / point.name, self._log(point)
        resumes = _resumable(folder)
        if not resumes:
            log.unlink(missing_ok=True)
            (folder / "log.txt").unlink(missing_ok=True)
        flag = "--resume" if resumes else "--overwrite"
        return Job(command(point, self._out, self._mpirun, flag), log, point.threads, lock)

    def _is_done(self, point: Point) -> bool:
        found = state(point, self._out, self._mpi)
        if found == "changed":
            raise changed_error([point], self._out, self._mpi)
        return found in ("finished", "diverged")

    def _ended(self) -> list[Attempt]:
        ended = [attempt for attempt in self._running if attempt.job.poll() is not None]
        self._running = [attempt for attempt in self._running if attempt not in ended]
        return ended

    def _settle(self, attempt: Attempt) -> None:
        """Account for a run that has ended."""
        point, code = attempt.point, attempt.job.poll()
        attempt.job.end(patience=0)
        took = duration(time.monotonic() - attempt.started)
        with attempt.held:
            try:
                log = self._keep_log(point)
                if self._is_done(point):
                    self._over += 1
                    self._say(f"{self._head(point)}: {self._result(point)}, {took}")
                else:
                    last = _last_words(log)
                    self._fail(point, f"FAILED after {took}, exit code {code}; {log} ends with", *last)
            except (UsageError, OSError) as error:
                self._fail(point, f"FAILED after {took}: {error}")

    def _fail(self, point: Point, *lines: str) -> None:
        self._over += 1
        self.failed.append(point.name)
        self._say("\n    ".join([f"{self._head(point)} {lines[0]}", *lines[1:]]))

    def _head(self, point: Point) -> str:
        return f"[{self._over}/{self._total}] {point.name}"

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
        if self._running:
            names = ", ".join(attempt.point.name for attempt in self._running)
            self._say(f"ended without a checkpoint of where they were: {names}")
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


def _last_words(log: Path) -> list[str]:
    # Open MPI ends its own messages with a zero byte.
    text = log.read_text(errors="replace").replace("\0", "") if log.exists() else ""
    return (FRAMED.sub("", text).strip() or text.strip()).splitlines()[-3:]
