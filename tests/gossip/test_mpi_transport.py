"""The MPI transport: the laws of every transport on several numbers of ranks, and how a job ends."""

from __future__ import annotations

import json

import pytest

from gossip.transport import environment
from gossip.transport.environment import env_rank, env_size, launched
from tests.mpirun import Job, mpirun, needs_mpi
from tests.transport_laws import LAWS

END_WITHIN = 10.0  # seconds, from when all ranks are there

# -- laws ------------------------------------------------------------------------------------------


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_every_law_holds_on_every_rank(n: int) -> None:
    job = mpirun(n, "-m", "tests.mpi.transport_laws", timeout=300)
    assert job.returncode == 0, job.output
    passed = json.loads(job.stdout)
    assert len(passed) == n
    for of_rank in passed:
        assert set(LAWS) < set(of_rank)
        assert sum("between hosts" in law for law in of_rank) >= 7


# -- endings ---------------------------------------------------------------------------------------


def end(how: str, n: int = 2) -> tuple[Job, list[str]]:
    """A job that ends as `how` in tests/mpi/endings.py says; it, and the lines its ranks wrote to stderr."""
    job = mpirun(n, "-m", "tests.mpi.endings", how, timeout=300)
    started = next(float(line.split()[1]) for line in job.stdout.splitlines() if line.startswith("started "))
    assert job.ended - started < END_WITHIN, job.output
    assert "egmentation" not in job.output, job.output
    return job, [line for line in job.stderr.splitlines() if line.startswith("rank ")]


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("how", ["raises", "raises_in_thread"])
def test_an_exception_on_one_rank_ends_the_job_with_its_traceback(how: str) -> None:
    job, lines = end(how)
    assert job.returncode == 1, job.output
    assert lines.count("rank 1: ZeroDivisionError: the cause") == 1, job.output
    assert lines[0] == "rank 1: Traceback (most recent call last):", job.output
    assert all(line.startswith("rank 1:") for line in lines), job.output


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(
    "how", ["exits", "exits_before_collective", "exits_before_mean", "exits_before_ring"]
)
def test_the_others_learn_that_a_rank_has_left(how: str) -> None:
    job, lines = end(how)
    assert job.returncode != 0, job.output
    assert lines and all(line.startswith("rank 0") for line in lines), job.output
    assert any("rank 1" in line and "has left (finished)" in line for line in lines), job.output


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("how", ["forgets", "leaves_in_turn", "leaves_while_copying"])
def test_a_job_ends_cleanly(how: str) -> None:
    job, lines = end(how, 3)
    assert job.returncode == 0 and not lines, job.output


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("wrong_usage", 2, "rank 0: type this instead"),
        ("diverges", 3, "rank 1: NaN in round 3"),
        ("is_interrupted", 130, "rank 1: interrupted"),
    ],
)
def test_an_error_is_one_line_and_decides_the_exit_code(how: str, code: int, message: str) -> None:
    job, lines = end(how)
    assert job.returncode == code, job.output
    assert lines == [message], job.output


# -- launchers -------------------------------------------------------------------------------------

LAUNCHERS = {
    "Open MPI": "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=3",
    "MPICH": "PMI_RANK=3 PMI_SIZE=8",
    "MVAPICH": "MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_SIZE=8",
    "srun pmix": "PMIX_RANK=3 SLURM_PROCID=3 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=8",
    "srun pmi2": "PMI_RANK=3 PMI_SIZE=8 SLURM_PROCID=3 SLURM_NTASKS=16",
}


def pretend(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    for launcher in environment._LAUNCHERS:
        for names in launcher:
            for name in names:
                monkeypatch.delenv(name, raising=False)
    for assignment in variables.split():
        monkeypatch.setenv(*assignment.split("="))


@pytest.mark.parametrize("variables", LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_launcher_is_recognized(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    pretend(monkeypatch, variables)
    assert launched() and (env_rank(), env_size()) == (3, 8)


@pytest.mark.parametrize("variables", ["", "SLURM_PROCID=0 SLURM_NTASKS=8", "PMI_RANK= PMI_SIZE="])
def test_no_launcher(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    """A batch script, too, is one process: only what srun starts are ranks."""
    pretend(monkeypatch, variables)
    assert not launched() and (env_rank(), env_size()) == (0, 1)
