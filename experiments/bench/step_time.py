"""What the exchange costs: step time of a method against the same script with the exchange switched off.

    python experiments/bench/step_time.py                  # 8 ranks, DCD 8 bit against local, 5 alternations

The two run in alternation, so that what else happens on the machine meets both; the ratio is taken within
each pair, and the median over the pairs is reported, with all of them. `step_ms` of a run is the mean over
ranks of its median over steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def step_ms(args: argparse.Namespace, algorithm: str, out: Path) -> float:
    """One run's median step time in ms."""
    command = ["mpirun", "-n", str(args.ranks), sys.executable, "-m", "experiments.train"]
    command += ["--model", args.model, "--dataset", "synthetic:train=4096,test=64", "--batch-size", "16"]
    command += ["--algorithm", algorithm, "--topology", args.topology]
    if algorithm != "local":
        command += ["--compressor", args.compressor]
    command += ["--steps", str(args.steps), "--epochs", "1000", "--eval-every", "1000", "--seed", "1"]
    command += ["--log-every", str(args.steps), "--out", str(out), "--overwrite"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(json.loads((out / "summary.json").read_text())["step_ms"])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", default="dcd")
    parser.add_argument("--against", default="local")
    parser.add_argument("--compressor", default="qsgd:bits=8")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    args = parser.parse_args()

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.pairs):
            order = (args.algorithm, args.against) if i % 2 == 0 else (args.against, args.algorithm)
            ms = {algorithm: step_ms(args, algorithm, Path(folder) / algorithm) for algorithm in order}
            pairs.append((ms[args.algorithm], ms[args.against]))
            ratio = pairs[-1][0] / pairs[-1][1]
            print(
                f"{args.algorithm} {pairs[-1][0]:.1f} ms, {args.against} {pairs[-1][1]:.1f} ms: {ratio:.3f}",
                flush=True,
            )
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"median ratio {ratio:.3f}; {args.ranks} ranks on {os.cpu_count()} cores, {platform.machine()}")
    if args.json is not None:
        result = {"ratio": ratio, "pairs_ms": pairs, "cores": os.cpu_count(), "command": " ".join(sys.argv)}
        args.json.write_text(json.dumps({**vars(args), "json": None, **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
