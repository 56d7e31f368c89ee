"""All-reduce against torch's DistributedDataParallel on gloo: step times in alternation, on the same ranks.

    mpirun -n 4 python -m experiments.bench.ddp               # ResNet-20, batch 16, one thread per rank

Every rank holds the same model three times, from equal weights, with an SGD of its own: joined with
`--algorithm allreduce` (MPI), and wrapped in DDP (gloo), with gradients of their own or as views of DDP's
buckets (which is faster depends on the machine's memory). They take turns in blocks of steps on the same
batches, in reversed order every other time, so that whatever else the machine does meets all. A block's time
is that of its slowest rank. Ratios are taken within a turn; their medians over the turns are reported, with
all times. After the warm-up all three must have trained alike.

DDP does not broadcast batch norm statistics here, since `gossip` does not either. All exchange in buckets of
about 25 MiB while backward runs, the first of 1 MiB, so that also small models overlap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gossip
from experiments import models
from gossip import bench, cli
from gossip.cli import positive_int
from gossip.envreport import collect
from gossip.errors import GossipError, UsageError

OURS = "allreduce"

DDP: dict[str, dict[str, bool]] = {
    "ddp": {"broadcast_buffers": False},
    "ddp-views": {"broadcast_buffers": False, "gradient_as_bucket_view": True},
}

ALIKE = 1e-3
"""The most that the parameters may differ after the warm-up, relative to the largest: rounding grows."""

Batches = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Leg:
    """One of the three: what to train, on the batches that the others get too."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches

    def train(self, steps: int) -> tuple[float, float]:
        """An ordinary loop; this rank's wall time and CPU time per step, in ms."""
        wall, cpu = time.perf_counter(), time.process_time()
        for x, y in itertools.islice(self.batches, steps):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return 1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps

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


def build_legs(args: argparse.Namespace, world: gossip.Transport) -> tuple[gossip.Session, dict[str, Leg]]:
    """The three, by name, and the session of the first. Collective."""
    model, optimizer = build(args)
    node = gossip.join(model, optimizer, algorithm="allreduce", bucket_mb=args.bucket_mb, device="cpu")
    legs = {OURS: Leg(model, optimizer, batches(args, world.rank))}
    for name, settings in DDP.items():
        model, optimizer = build(args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames broadcast_buffers
            model = DistributedDataParallel(model, **settings)  # type: ignore[arg-type]
        legs[name] = Leg(model, optimizer, batches(args, world.rank))
    return node, legs


def check_alike(legs: Iterable[Leg]) -> float:
    """The largest difference of two parameters, relative to the largest. Raises if it is not rounding."""
    first, *others = (leg.parameters() for leg in legs)
    difference = max(float((x - first).abs().max() / first.abs().max()) for x in others)
    if not difference < ALIKE:
        raise GossipError(f"they train differently (by {difference:.1e}): no comparison is possible")
    return difference


def turn(legs: dict[str, Leg], steps: int, world: gossip.Transport) -> dict[str, dict[str, float]]:
    """A block of each leg. In ms per step: wall time of the slowest rank, CPU time as the mean over ranks."""
    times = {}
    for name, leg in legs.items():
        world.barrier()
        wall, cpu = zip(*world.allgather(leg.train(steps)), strict=True)
        times[name] = {"ms": max(wall), "cpu_ms": statistics.fmean(cpu)}
    return times


def main() -> None:
    """The command."""
    parser = cli.ArgumentParser(
        prog="python -m experiments.bench.ddp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="resnet20", help="as for experiments.train (%(default)s)")
    add("--batch-size", type=positive_int, default=16, metavar="N", help="per rank (%(default)s)")
    add("--bucket-mb", type=float, metavar="MB", help="of allreduce (1 for the first, 25)")
    add("--warmup", type=positive_int, default=5, metavar="STEPS", help="of each, not timed (%(default)s)")
    add("--steps", type=positive_int, default=20, metavar="N", help="per block (%(default)s)")
    add("--turns", type=positive_int, default=15, metavar="N", help="blocks of each (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the numbers here too")
    args = parser.parse_args()
    world = gossip.world()
    if world.size == 1:
        raise UsageError("one rank exchanges nothing. Type: mpirun -n 4 python -m experiments.bench.ddp")
    torch.set_num_threads(1)
    init_gloo(world)
    node, legs = build_legs(args, world)
    for leg in legs.values():
        leg.train(args.warmup)
    difference = check_alike(legs.values())

    turns = []
    for i in range(args.turns):
        order = legs if i % 2 == 0 else dict(reversed(legs.items()))
        turns.append(turn(order, args.steps, world))
        if world.rank == 0:
            print(
                ", ".join("{} {ms:.2f} ms (CPU {cpu_ms:.2f})".format(k, **turns[-1][k]) for k in legs),
                flush=True,
            )
    node.finish()
    dist.destroy_process_group()
    if world.rank == 0:
        report(args, world.size, turns, difference)


def report(
    args: argparse.Namespace, ranks: int, turns: list[dict[str, dict[str, float]]], difference: float
) -> None:
    """Print the medians, and write the JSON file."""
    machine = bench.machine()
    ratios = {
        name: {
            what: statistics.median(t[OURS][what] / t[name][what] for t in turns) for what in ("ms", "cpu_ms")
        }
        for name in DDP
    }
    for name, ratio in ratios.items():
        print(
            f"{OURS} / {name}: median {ratio['ms']:.3f} (target: at most 1); CPU time {ratio['cpu_ms']:.3f}"
        )
    print(
        f"{args.model}, batch {args.batch_size}, {args.turns} turns of {args.steps} steps; "
        f"{ranks} ranks on {machine['cores']} cores, {machine['cpu']}, load {machine['load']:.1f}"
    )
    print(f"after {args.warmup} steps the parameters differ by {difference:.1e} of the largest")
    if args.json is not None:
        result = {
            **{name: value for name, value in vars(args).items() if name != "json"},
            "ranks": ranks,
            "ratios": ratios,
            "turns": turns,
            "parameter_difference": difference,
            "ddp": DDP,
            "machine": machine,
            "mpi": collect()["mpi"],
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    cli.run(main)
