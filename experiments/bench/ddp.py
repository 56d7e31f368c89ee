"""All-reduce against torch's DistributedDataParallel on gloo: step times in alternation, on the same ranks.

    mpirun -n 4 python -m experiments.bench.ddp               # ResNet-20, batch 16, one thread per rank

Every rank holds the same model twice, once joined with `--algorithm allreduce` (MPI) and once wrapped in DDP
(gloo), from equal weights, with an SGD of its own. The two take turns in blocks of steps on the same batches,
in reversed order in every other pair, so that whatever else the machine does meets both; a block's time is
that of its slowest rank. The ratio is taken within each pair, and the median over the pairs is reported with
all of them. After the warm-up both models must have trained alike.

DDP gets its faster settings: gradients are views of its buckets, and batch norm statistics are not broadcast
(which `gossip` does not do either). Both exchange in buckets of at most 25 MiB while backward runs; DDP's
first is of 1 MiB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gossip
from experiments import models
from gossip import bench, cli
from gossip.envreport import collect
from gossip.errors import GossipError, UsageError

DDP_SETTINGS: dict[str, Any] = {"broadcast_buffers": False, "gradient_as_bucket_view": True}

ALIKE = 1e-3
"""The most that the parameters may differ after the warm-up, relative to the largest: rounding grows."""

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Leg:
    """One of the two: what to train, on the batches that the other gets too."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches

    def train(self, steps: int) -> float:
        """An ordinary loop; seconds per step of this rank."""
        start = time.perf_counter()
        for x, y in itertools.islice(self.batches, steps):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return (time.perf_counter() - start) / steps

    def parameters(self) -> Tensor:
        """All of them in one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def build(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with the weights of its seed, in the memory format of `experiments.train`, and its SGD."""
    torch.manual_seed(0)
    model = models.build(args.model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def batches(args: argparse.Namespace, rank: int) -> Batches:
    """Random images and labels, which differ by rank; a few that repeat, as loading is not the question."""
    draw = torch.Generator().manual_seed(1 + rank)
    few = [
        (
            torch.randn(args.batch_size, 3, 32, 32, generator=draw).to(memory_format=torch.channels_last),
            torch.randint(10, (args.batch_size,), generator=draw),
        )
        for _ in range(8)
    ]
    return itertools.cycle(few)


def init_gloo(world: gossip.Transport) -> None:
    """Make torch's process group of the MPI job's ranks; they meet at a port that rank 0 opens."""
    host = "127.0.0.1" if world.local_size == world.size else world.allgather(socket.getfqdn())[0]
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if world.rank == 0 else None
    port = world.allgather(store.port if store else None)[0]
    store = store or dist.TCPStore(host, port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)


def check_alike(ours: Leg, theirs: Leg) -> float:
    """The largest difference of two parameters, relative to the largest. Raises if it is not rounding."""
    difference = (ours.parameters() - theirs.parameters()).abs().max() / theirs.parameters().abs().max()
    if not difference < ALIKE:
        raise GossipError(f"the two train differently (by {difference:.1e}): no comparison is possible")
    return float(difference)


def main() -> None:
    """The command."""
    parser = cli.ArgumentParser(
        prog="python -m experiments.bench.ddp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="resnet20", help="as for experiments.train (%(default)s)")
    add("--batch-size", type=int, default=16, metavar="N", help="per rank (%(default)s)")
    add("--warmup", type=int, default=5, metavar="STEPS", help="of each, not timed (%(default)s)")
    add("--steps", type=int, default=20, metavar="N", help="per block (%(default)s)")
    add("--pairs", type=int, default=15, metavar="N", help="blocks of each (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the numbers here too")
    args = parser.parse_args()
    world = gossip.world()
    if world.size == 1:
        raise UsageError("one rank exchanges nothing. Type: mpirun -n 4 python -m experiments.bench.ddp")
    torch.set_num_threads(1)
    init_gloo(world)

    model, optimizer = build(args)
    node = gossip.join(model, optimizer, algorithm="allreduce", device="cpu")
    ours = Leg(model, optimizer, batches(args, world.rank))
    model, optimizer = build(args)
    theirs = Leg(DistributedDataParallel(model, **DDP_SETTINGS), optimizer, batches(args, world.rank))
    for leg in (ours, theirs):
        leg.train(args.warmup)
    difference = check_alike(ours, theirs)

    node.stats.take()
    pairs = []
    for pair in range(args.pairs):
        ms = {}
        for leg in (ours, theirs) if pair % 2 == 0 else (theirs, ours):
            world.barrier()
            ms[leg] = 1e3 * max(world.allgather(leg.train(args.steps)))
        pairs.append((ms[ours], ms[theirs]))
        if world.rank == 0:
            ratio = ms[ours] / ms[theirs]
            print(f"allreduce {ms[ours]:.2f} ms, ddp {ms[theirs]:.2f} ms: {ratio:.3f}", flush=True)
    exposed = statistics.fmean(world.allgather(statistics.median(node.stats.take()["exposed_wait_ms"])))
    node.finish()
    dist.destroy_process_group()
    if world.rank == 0:
        report(args, world.size, pairs, exposed, difference)


def report(
    args: argparse.Namespace,
    ranks: int,
    pairs: list[tuple[float, float]],
    exposed: float,
    difference: float,
) -> None:
    """Print the summary, and write the JSON file."""
    machine, ratio = bench.machine(), statistics.median(ours / ddp for ours, ddp in pairs)
    print(f"median ratio {ratio:.3f} (target: at most 1), allreduce waits {exposed:.1f} ms of its step")
    print(
        f"{args.model}, batch {args.batch_size}, {args.pairs} pairs of {args.steps} steps; "
        f"{ranks} ranks on {machine['cores']} cores, {machine['cpu']}, load {machine['load']:.1f}"
    )
    print(f"DDP: {DDP_SETTINGS}; after {args.warmup} steps the parameters differ by {difference:.1e}")
    if args.json is not None:
        result = {
            **{name: value for name, value in vars(args).items() if name != "json"},
            "ranks": ranks,
            "ratio": ratio,
            "pairs_ms": pairs,
            "exposed_wait_ms": exposed,
            "parameter_difference": difference,
            "ddp": DDP_SETTINGS,
            "machine": machine,
            "mpi": collect()["mpi"],
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    cli.run(main)
