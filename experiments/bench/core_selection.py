"""What Slim-DP spends on keys: choosing the core and drawing an explorer, by number of parameters.

    python -m experiments.bench.core_selection                     # alpha 0.3, beta 0.15, 2^16 … 2^24 values

An owner chooses the core of its shard in every q-th exchange, from the parameters and their update; a worker
draws an explorer for every shard in every exchange (with keys=seed the owner draws it too). The time is this
process's CPU time, the least of all repeats. ns per value that stay level from size to size mean time linear
in the number of parameters. Copying as many float32 stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from experiments.bench import by_size
from experiments.bench.by_size import cpu_seconds
from gossip.algorithms.slim import most_significant
from gossip.algorithms.slim_exchange import explorer


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


COLUMNS = {
    "values": "{values:,}",
    "core, ns/value": "{core_ns:.2f}",
    "explorer, ns/value": "{explorer_ns:.2f}",
    "copy, ns/value": "{copy_ns:.2f}",
}


def main() -> None:
    """The command."""
    parser = by_size.parser(__doc__)
    parser.add_argument("--alpha", type=float, default=0.3, help="share exchanged (%(default)g)")
    parser.add_argument("--beta", type=float, default=0.15, help="share in the core (%(default)g)")
    args = parser.parse_args()
    by_size.run(
        args,
        f"alpha {args.alpha:g}, beta {args.beta:g}, Gaussian vectors",
        COLUMNS,
        lambda d: measure(d, args.alpha, args.beta, args.repeats),
        {"alpha": args.alpha, "beta": args.beta},
    )


if __name__ == "__main__":
    main()
