"""One job on hosts of its own: started, ended when it takes too long, its answer or its failure kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from experiments.netlab.jobs import Job
from experiments.netlab.lab import Lab
from experiments.netlab.network import Network
from experiments.netlab.results import Results
from gossip.errors import GossipError

START_SECONDS = 3.0
"""Of a process with torch on one core, and of its share in MPI's start: for estimates."""

PATIENCE = 6.0
"""A job may take so many times what was estimated, and a minute, before it is ended."""


def start_seconds(hosts: int) -> float:
    """About how long it takes until all ranks of a job are up."""
    return 2 + START_SECONDS * hosts / (os.cpu_count() or 1)


def run_job(
    results: Results,
    hosts: int,
    network: Network,
    timeout: float,
    settings: Mapping[str, str] | None = None,
    **job: Any,
) -> Any:
    """Make hosts, run a job on them, and take them down.

    Args:
        results: gets a line in `failed` if the job fails; the ranks' output goes to log.txt beside it.
        timeout: seconds.
        settings: MCA parameters.
        job: fields of `Job`, without the answer.

    Returns the job's answer, as far as it came; None if there is none.
    """
    answer, settings = None, dict(settings or {})
    try:
        with Lab(hosts, network) as lab:
            task = Job(answer=lab.folder / "answer.json", **job)
            file, log = lab.folder / "job.json", results.folder / "log.txt"
            task.write(file)
            with log.open("a", encoding="utf-8") as text:
                text.write(f"\n--- {task.task}, {network} {task.options} {settings}\n")
            try:
                lab.mpirun(
                    [sys.executable, "-m", "experiments.netlab.jobs", str(file)], timeout, settings, log
                )
            finally:
                if task.answer.exists():
                    answer = json.loads(task.answer.read_text())
    except GossipError as error:
        what = f"{job['task']}, {network}{f', {settings}' if settings else ''}"
        results.failed.append(f"{what}: {str(error).splitlines()[0]}")
        results.save()
        say(f"FAILED: {what}: {error}")
    return answer


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)
