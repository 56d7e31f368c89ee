"""What finding the largest values costs: DGC's sampled threshold against exact selection, by tensor size.

    python -m experiments.bench.codec_selection                    # 0.1 %, 2^16 … 2^24 values, one thread

Both ways take turns on the same Gaussian vectors; the time is this process's CPU time, the least of all
repeats, so that what else the machine does hardly matters. ns per value that stay level from size to size
mean time linear in the number of parameters. `kept` is the share of the wanted k values that was sent.
torch.topk alone, which only finds the values, stands beside them.
"""

from __future__ import annotations

import torch

from compressors import LayerTopK
from experiments.bench import by_size
from experiments.bench.by_size import cpu_seconds

WAYS = ("sampled", "exact")


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


COLUMNS = {
    "values": "{values:,}",
    "sampled, ns/value": "{sampled_ns:.2f}",
    "exact, ns/value": "{exact_ns:.2f}",
    "exact / sampled": "{speedup:.1f}",
    "torch.topk": "{torch_ns:.2f}",
    "kept": "{kept:.3f}",
    "decode": "{decode_ns:.3f}",
}


def main() -> None:
    """The command."""
    parser = by_size.parser(__doc__)
    parser.add_argument("--ratio", type=float, default=0.001, help="share of the values sent (%(default)g)")
    args = parser.parse_args()
    by_size.run(
        args,
        f"top {100 * args.ratio:g} % of a Gaussian vector",
        COLUMNS,
        lambda d: measure(d, args.ratio, args.repeats),
        {"ratio": args.ratio},
    )


if __name__ == "__main__":
    main()
