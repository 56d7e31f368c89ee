"""A sweep as a Slurm job array: one task for each run, which starts, resumes and requeues by itself."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import toml
from experiments.sweep.grid import Point
from gossip import files

SCRIPT = """\
#!/bin/bash
# {count} runs of {file}. What your site asks for is missing here: account, partition, GPUs, memory.
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --ntasks={ranks}
#SBATCH --cpus-per-task={threads}
#SBATCH --time=24:00:00
#SBATCH --output={output}
# Two minutes before the end, and when the job is pre-empted, the sweep lets the run write a checkpoint.
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

runs=(
{runs}
)
cd {here}
{activate}trap 'kill -USR1 $!' USR1 TERM
{command} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}" &
sweep=$!
wait $sweep; code=$?
if [ $code -gt 128 ]; then wait $sweep; code=$?; fi    # the first wait ended with the signal
# 138: stopped by the signal, after a checkpoint. The requeued task goes on from there.
if [ $code -eq 138 ]; then scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"; fi
exit $code
"""


def write(args: argparse.Namespace, points: Sequence[Point], out: Path) -> Path:
    """Write ``sweep.sbatch`` into `out`; its path. `args` are those of ``python -m gossip sweep``."""
    command = ["python", "-m", "gossip", "sweep", str(args.file), "--out", str(out), "--jobs", "1"]
    command += ["--full"] if args.full else []
    command += ["--mpi"] if args.mpi else []
    command += ["--seeds", ",".join(map(str, args.seeds))] if args.seeds else []
    for key, value in args.set:
        command += ["--set", f"{key}={toml.dump(value)}"]
    activate = Path(sys.prefix) / "bin" / "activate"
    script = SCRIPT.format(
        count=len(points),
        file=args.file,
        name=_quoted(args.file.stem),
        last=len(points) - 1,
        ranks=max(point.nodes for point in points) if args.mpi else 1,
        threads=max(point.threads for point in points),
        output=_quoted(str(out.resolve()).replace("%", "%%") + "/slurm-%A_%a.txt"),
        runs="\n".join(f"    {shlex.quote(point.name)}" for point in points),
        here=shlex.quote(str(Path.cwd())),
        activate=f"source {shlex.quote(str(activate))}\n" if activate.exists() else "",
        command=shlex.join(command),
    )
    files.make(out)
    path = out / "sweep.sbatch"
    files.replace_text(path, script)
    return path


def _quoted(text: str) -> str:
    """As sbatch reads it after ``#SBATCH``: a backslash escapes what ends the quotes or begins a comment."""
    return '"' + re.sub(r'([\\"#])', r"\\\1", text) + '"'
