"""What Slim-DP spends on keys: choosing the core and drawing an explorer, by number of parameters.

    python -m experiments.bench.core_selection                     # alpha 0.3, beta 0.15, 2^16 … 2^24 values

An owner chooses the core of its shard in every q-th exchange, from the parameters and their update; a worker
draws an explorer for every shard in every exchange (with keys=seed the owner draws it too). The time is this
process's CPU time, the least of all repeats. ns per value that stay level from size to size mean time linear
in the number of parameters. Copying as many float32 stands beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from compressors import kernels
from gossip.algorithms.slim import most_significant
from gossip.algorithms.slim_exchange import explorer


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(d: int, alpha: float, beta: float, repeats: int) -> dict[str, float]:
    """ns per value of the vector, of each."""
    generator = torch.Generator().manual_seed(d)
    w, g, out = torch.randn(d, generator=generator), torch.randn(d, generator=generator), torch.empty(d)
    core = most_significant(w, g, 1.0, round(beta * d))
    works: dict[str, Callable[[int], object]] = {
        "core": lambda key: most_significant(w, g, 1.0, round(beta * d)),
        "explorer": lambda key: explorer(core, d, round(alpha * d) - core.numel(), key),
        "copy": lambda key: out.copy_(w),
    }
    best = dict.fromkeys(works, float("inf"))
    for key in range(repeats):
        for name, work in works.items():
            best[name] = min(best[name], cpu_seconds(lambda work=work, key=key: work(key)))  # type: ignore[misc]
    return {"values": d, **{f"{name}_ns": 1e9 * seconds / d for name, seconds in best.items()}}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alpha", type=float, default=0.3, help="share exchanged (%(default)g)")
    parser.add_argument("--beta", type=float, default=0.15, help="share in the core (%(default)g)")
    parser.add_argument("--largest", type=int, default=24, metavar="E", help="sizes up to 2^E (%(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="the least of these counts (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    about = f"torch {torch.__version__}, one thread, {kernels.status()}, {platform.processor() or 'CPU'}"
    print(f"alpha {args.alpha:g}, beta {args.beta:g}, Gaussian vectors; {about}")
    print("| values | core, ns/value | explorer, ns/value | copy, ns/value |")
    print("|---:|---:|---:|---:|")
    rows = []
    for exponent in range(16, args.largest + 1, 2):
        row = measure(2**exponent, args.alpha, args.beta, args.repeats)
        rows.append(row)
        print(
            f"| {row['values']:,} | {row['core_ns']:.2f} | {row['explorer_ns']:.2f} | {row['copy_ns']:.2f} |",
            flush=True,
        )
    if args.json is not None:
        facts = {"about": about, "alpha": args.alpha, "beta": args.beta, "rows": rows}
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
