"""What virtual nodes cost: a round of n nodes in one process against n steps of one node, and the memory.

    python -m experiments.bench.virtual_nodes           # 64 nodes, ResNet-20, DCD 8 bit, three alternations

Both train in alternation, on one thread, so that what else happens on the machine meets both; the ratio is
taken within each pair, and the median over the pairs is reported, with all of them. Times are means over the
second half of a run's steps: a node may be a part of a round ahead of the others, so its median step is not a
round. The memory is the most that a process of n nodes held at a time.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.runs import read_metrics


def run(args: argparse.Namespace, nodes: int, steps: int, method: list[str], out: Path) -> tuple[float, int]:
    """A step of one run in ms, the mean over the second half of its 2 `steps`; its most memory in bytes."""
    command = [sys.executable, "-m", "experiments.train", "--nodes", str(nodes), "--threads", "1"]
    command += [
        "--model",
        args.model,
        "--dataset",
        "synthetic:train=4096,test=64",
        "--batch-size",
        "16",
        "--bn",
        "local",
    ]
    command += [*method, "--steps", str(2 * steps), "--epochs", "1000", "--eval-every", "1000", "--seed", "1"]
    command += ["--log-every", str(steps), "--out", str(out), "--overwrite"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"exit code {child.returncode}: {' '.join(command)}")
    last = read_metrics(out)[-1]
    return float(last["step_ms"]), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--algorithm", default="dcd")
    parser.add_argument("--compressor", default="qsgd:bits=8")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--steps", type=int, default=5, help="of every node that are timed")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    method = ["--algorithm", args.algorithm, "--compressor", args.compressor, "--topology", args.topology]

    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.pairs):
            for nodes in (args.nodes, 1) if i % 2 == 0 else (1, args.nodes):
                if nodes == 1:
                    own, _ = run(args, 1, 20 * args.steps, ["--algorithm", "local"], Path(folder) / "one")
                else:
                    all_of_them, memory = run(args, nodes, args.steps, method, Path(folder) / "all")
            ratios.append(all_of_them / (args.nodes * own))
            print(
                f"a round of {args.nodes} nodes {all_of_them:.0f} ms, a step of one {own:.1f} ms: "
                f"{ratios[-1]:.3f} times {args.nodes} steps; {memory / 2**30:.2f} GiB",
                flush=True,
            )
    print(
        f"median ratio {statistics.median(ratios):.3f}; {args.model}, {args.algorithm}, {args.compressor}, "
        f"batch 16, one thread; {os.cpu_count()} cores, {platform.machine()}"
    )


if __name__ == "__main__":
    main()
