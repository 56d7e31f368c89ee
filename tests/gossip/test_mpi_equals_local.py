"""Virtual nodes and MPI ranks compute the same: the program of tests/mpi/method_laws.py, run both ways."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gossip
from tests.mpi.method_laws import MEANS, SPECS, results
from tests.mpirun import mpirun, needs_mpi


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("n", (2, 3, 5, 8))
def test_mpi_equals_virtual_nodes(n: int) -> None:
    _equal(n)


@needs_mpi
@pytest.mark.mpi
@pytest.mark.slow
def test_a_rank_that_is_20_seconds_late_is_waited_for() -> None:
    """With all time-outs as they are by default: none is shorter, down to those of MPI."""
    _equal(3, LATE="20")


def _equal(n: int, **env: str) -> None:
    job = mpirun(n, "-m", "tests.mpi.method_laws", timeout=240, env=env)
    assert job.returncode == 0, job.output
    over_mpi, virtual = json.loads(job.stdout), gossip.launch(results, n)
    assert len(over_mpi) == n
    for ours, theirs in zip(virtual, over_mpi, strict=True):
        assert ours.keys() == theirs.keys() == set(SPECS)
        for spec in SPECS:
            if spec in MEANS:
                np.testing.assert_allclose(theirs[spec], ours[spec], rtol=1e-5, atol=1e-6, err_msg=spec)
            else:
                assert theirs[spec] == ours[spec], spec
