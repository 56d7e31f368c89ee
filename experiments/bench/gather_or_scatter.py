"""Which way compressed gradients should travel: messages to all, or parts to their owners (exchange.py).

    mpirun -n 4 python -m experiments.bench.gather_or_scatter      # QSGD 8 bit

Both ways take turns on the same vectors, over the job's own transport; a step is backward through a model
that is one weight matrix, so nearly all of it is encode, exchange and decode. Per size: bytes that rank 0
sends per step, and the least wall time of all repeats, of the slowest rank.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import gossip

WAYS = ("all", "scatter")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", default="qsgd", help="qsgd or signsgd (%(default)s)")
    parser.add_argument("--compressor", help="(the method's)")
    parser.add_argument("--largest", type=int, default=22, metavar="E", help="sizes up to 2^E (%(default)s)")
    parser.add_argument("--repeats", type=int, default=15, help="the least of these counts (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    world = gossip.world()
    if world.rank == 0:
        print("| values | all: bytes | scatter: bytes | all: ms | scatter: ms |\n|---:|---:|---:|---:|---:|")
    for exponent in range(12, args.largest + 1, 2):
        sessions, best, sent = {}, dict.fromkeys(WAYS, float("inf")), {}
        for way in WAYS:
            model = nn.Linear(2 ** (exponent // 2), 2 ** (exponent - exponent // 2), bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            spec = f"{args.algorithm}:gather={way}"
            node = gossip.join(model, optimizer, algorithm=spec, compressor=args.compressor)
            sessions[way] = node, model, optimizer
        slope = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(world.rank))
        for repeat in range(args.repeats):
            for way in WAYS if repeat % 2 == 0 else WAYS[::-1]:
                _, model, optimizer = sessions[way]
                optimizer.zero_grad()
                loss = (model.weight * slope).sum()
                before = world.bytes_sent
                world.barrier()
                start = time.perf_counter()
                loss.backward()
                seconds = max(world.allgather(time.perf_counter() - start))
                optimizer.step()
                best[way], sent[way] = min(best[way], seconds), world.bytes_sent - before
        if world.rank == 0:
            numbers = [*(f"{sent[way]:,}" for way in WAYS), *(f"{1e3 * best[way]:.2f}" for way in WAYS)]
            print(f"| {2**exponent:,} | " + " | ".join(numbers) + " |", flush=True)
        for node, _, _ in sessions.values():
            node.finish()


if __name__ == "__main__":
    main()
