"""What virtual nodes cost: a round of n nodes in one process against n steps of one node, and the memory.

    python -m experiments.bench.virtual_nodes           # 64 nodes, ResNet-20, DCD 8 bit, three alternations

Both train in alternation, on one thread, so that what else happens on the machine meets both; the ratio is
taken within each pair, and the median over the pairs is reported, with all of them. A step's time is what a
longer run takes more than a shorter one, so start and test are not in it. (A node's own step time is less:
some of its waiting for the others is between steps.) The memory is the most that the process held.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(args: argparse.Namespace, nodes: int, steps: int, method: list[str], out: Path) -> tuple[float, int]:
    """One run's wall time in seconds, and the most memory it held, in bytes."""
    command = [sys.executable, "-m", "experiments.train", "--nodes", str(nodes), "--threads", "1"]
    command += ["--model", args.model, "--dataset", "synthetic:train=4096,test=64", "--batch-size", "16"]
    command += [*method, "--bn", "local", "--steps", str(steps), "--epochs", "1000", "--eval-every", "1000"]
    command += ["--log-every", str(steps), "--seed", "1", "--out", str(out), "--overwrite"]
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"exit code {child.returncode}: {' '.join(command)}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def step_ms(
    args: argparse.Namespace, nodes: int, steps: int, method: list[str], out: Path
) -> tuple[float, int]:
    """What a step of all nodes takes, in ms, and the most memory of a run."""
    short, _ = run(args, nodes, steps, method, out)
    long, memory = run(args, nodes, 3 * steps, method, out)
    return 1e3 * (long - short) / (2 * steps), memory


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
    parser.add_argument("--steps", type=int, default=3, help="of every node in the shorter run")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    method = ["--algorithm", args.algorithm, "--compressor", args.compressor, "--topology", args.topology]

    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.pairs):
            for nodes in (args.nodes, 1) if i % 2 == 0 else (1, args.nodes):
                if nodes == 1:
                    own, _ = step_ms(args, 1, 20 * args.steps, ["--algorithm", "local"], Path(folder) / "one")
                else:
                    all_of_them, memory = step_ms(args, nodes, args.steps, method, Path(folder) / "all")
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
