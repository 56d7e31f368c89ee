"""What finding the largest values costs: DGC's sampled threshold against exact selection, by tensor size.

    python -m experiments.bench.codec_selection                    # 0.1 %, 2^16 … 2^24 values, one thread

Both ways take turns on the same Gaussian vectors; the time is this process's CPU time, the least of all
repeats, so that what else the machine does hardly matters. ns per value that stay level from size to size
mean time linear in the number of parameters. `kept` is the share of the wanted k values that was sent.
torch.topk alone, which only finds the values, stands beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from compressors import LayerTopK, kernels

WAYS = ("sampled", "exact")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(d: int, ratio: float, repeats: int) -> dict[str, float]:
    """ns per value of an encode, both ways, and of adding a decoded message; the share of k that was sent."""
    x = torch.randn(d, generator=torch.Generator().manual_seed(d))
    out = torch.zeros(d)
    codecs = {way: LayerTopK(ratio, way).for_segments([d]) for way in WAYS}
    payloads = {way: codec.encode(x, 0) for way, codec in codecs.items()}
    k = codecs["exact"].most(d)
    best = dict.fromkeys([*WAYS, "decode", "torch"], float("inf"))
    for key in range(repeats):
        for way in WAYS if key % 2 == 0 else WAYS[::-1]:
            best[way] = min(best[way], cpu_seconds(lambda way=way, key=key: codecs[way].encode(x, key)))  # type: ignore[misc]
        best["decode"] = min(
            best["decode"], cpu_seconds(lambda: codecs["sampled"].decode_add(payloads["sampled"], out))
        )
        best["torch"] = min(best["torch"], cpu_seconds(lambda: torch.topk(x.abs(), k)))
    lengths = [codecs["sampled"].encode(x, key).numel() for key in range(repeats)]
    row = {f"{name}_ns": 1e9 * seconds / d for name, seconds in best.items()}
    kept = sum(lengths) / len(lengths) / payloads["exact"].numel()
    return {"values": d, **row, "speedup": best["exact"] / best["sampled"], "kept": kept}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ratio", type=float, default=0.001, help="share of the values sent (%(default)g)")
    parser.add_argument("--largest", type=int, default=24, metavar="E", help="sizes up to 2^E (%(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="the least of these counts (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    args = parser.parse_args()
    torch.set_num_threads(1)

    about = f"torch {torch.__version__}, one thread, {kernels.status()}, {platform.processor() or 'CPU'}"
    print(f"top {100 * args.ratio:g} % of a Gaussian vector; {about}")
    print("| values | sampled, ns/value | exact, ns/value | exact / sampled | torch.topk | kept | decode |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for exponent in range(16, args.largest + 1, 2):
        row = measure(2**exponent, args.ratio, args.repeats)
        rows.append(row)
        print(
            f"| {row['values']:,} | {row['sampled_ns']:.2f} | {row['exact_ns']:.2f} | {row['speedup']:.1f} "
            f"| {row['torch_ns']:.2f} | {row['kept']:.3f} | {row['decode_ns']:.3f} |",
            flush=True,
        )
    if args.json is not None:
        args.json.write_text(json.dumps({"about": about, "ratio": args.ratio, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
