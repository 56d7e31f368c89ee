"""P3's step against FIFO by layers, where sending takes as long as computing, beside the simulation's word.

    sudo -E env PATH="$PATH" python -m experiments.bench.p3          # VGG-16 on 4 hosts, 8 minutes

Every host of a network laboratory (a namespace with a shaped link, experiments/netlab) holds two models, one
joined with `p3`, one with `p3:slice=layer,order=fifo`. They take turns in blocks of steps, in reversed order
every other time. The median of a block's steps counts, of its slowest host; ratios are taken within a turn.

The models have the layers of a real one, but do not compute: a layer sleeps for its share of the step, which
leaves the core to the exchange, as an accelerator would, so four hosts fit on two cores. A layer begins to
sleep when its parameters are there, and its gradient is there when it has slept.

What the simulation (experiments/p3_simulation) needs to know of the network is measured beforehand, on the
same hosts: the rate that messages of a slice's length get in both directions at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gossip
from experiments.netlab import isolation, requirements
from experiments.netlab.lab import Lab
from experiments.netlab.network import Network
from experiments.p3_simulation.layers import MODELS, Layer, load, total
from experiments.p3_simulation.simulator import BYTES, Cluster, simulate
from gossip import cli, units
from gossip.algorithms.p3 import P3
from gossip.cli import positive_int
from gossip.envreport import collect
from gossip.plan import link
from gossip.transport.base import Transport

SLICE = 50_000

WARM_UP = 1
"""Steps of a block that do not count: they begin with nothing left to send."""

NOTICE = 1e-3
"""Seconds until the progress thread looks again."""

UPDATE_PER_SLICE, UPDATE_PER_VALUE = 3e-4, 2e-9
"""About what gossip takes to sum and send on a slice, on a free core (seconds): little, on a slow link."""


def methods(in_flight: int) -> dict[str, P3]:
    """The baseline and P3, by name."""
    return {
        "FIFO, layers": P3(slice="layer", order="fifo", in_flight=in_flight),
        "P3": P3(slice=SLICE, in_flight=in_flight),
    }


# -- what does not compute ---------------------------------------------------------------------------------


class Sleeper(torch.autograd.Function):
    """Takes as long as a layer, forward and backward; its gradient is made up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Layer) -> Tensor:
        time.sleep(layer.forward)
        ctx.layer = layer
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        time.sleep(ctx.layer.backward)
        return grad[0], torch.full((1,), 1e-3).expand(ctx.layer.values), None


class SleepingLayer(nn.Module):
    """A layer's parameters, float32 [values], and its time."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer, self.weight = layer, nn.Parameter(torch.zeros(layer.values))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Sleeper.apply(x, self.weight, self.layer)
        return out


# -- on a host -----------------------------------------------------------------------------------------------


def measure(world: Transport, layers: Sequence[Layer], args: argparse.Namespace) -> dict[str, Any]:
    """Every turn's step times in seconds, by method, and the rate of the links in bytes per second."""
    neighbors = link.ring_neighbors(world)
    pieces = 32
    payload = pieces * BYTES * SLICE
    took = link.time_exchange(world, neighbors, payload, 3, pieces)
    legs = {}
    for name, method in methods(args.in_flight).items():
        model = nn.Sequential(*map(SleepingLayer, layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        node = gossip.join(model, optimizer, algorithm=method, progress="thread", timeout=600.0)
        legs[name] = model, optimizer, node
        block(world, *legs[name], steps=1)
    turns = []
    for turn in range(args.pairs):
        order = list(legs) if turn % 2 == 0 else list(legs)[::-1]
        turns.append({name: block(world, *legs[name], steps=args.steps) for name in order})
    for _, _, node in legs.values():
        node.finish()
    return {"turns": turns, "rate": payload * len(neighbors) / took}


def block(
    world: Transport, model: nn.Module, optimizer: torch.optim.Optimizer, node: gossip.Session, steps: int
) -> float:
    """The median time of `steps` steps after the warm-up, of the slowest host."""
    world.barrier()
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    node.wait()
    return max(world.allgather(statistics.median(times[WARM_UP:])))


# -- around it -----------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m experiments.bench.p3",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="vgg16-cifar", help="whose layers (%(default)s)")
    add("--hosts", type=positive_int, default=4, metavar="N", help="(%(default)s)")
    add("--bandwidth", default="200Mbit", metavar="RATE", help="of each host's link (%(default)s)")
    add("--latency", default="0.2ms", metavar="TIME", help="one way (%(default)s)")
    add("--compute", metavar="TIME", help="of a step (as long as it sends)")
    add("--in-flight", type=positive_int, default=P3().in_flight, metavar="N", help="(%(default)s)")
    add("--steps", type=positive_int, default=3, metavar="N", help="that count, per block (%(default)s)")
    add("--pairs", type=positive_int, default=5, metavar="N", help="turns of the two (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the numbers here too")
    add("--answer", type=Path, help=argparse.SUPPRESS)  # this process is a host, and rank 0 writes here
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(words)
    network = Network(units.bandwidth(args.bandwidth), units.duration(args.latency))
    values, _ = total(load(args.model, 1.0))
    sends = 2 * (args.hosts - 1) / args.hosts * BYTES * values * 8 / units.bandwidth(args.bandwidth)
    compute = sends if args.compute is None else units.duration(args.compute)
    layers = load(args.model, compute)
    if args.answer is not None:
        torch.set_num_threads(1)
        found = measure(gossip.world(), layers, args)
        if gossip.world().rank == 0:
            args.answer.write_text(json.dumps(found))
        return 0
    if not isolation.inside():
        requirements.check(*filter(None, [args.json]))
        print(
            f"{args.model}: {values:,} values in {len(layers)} layers, {args.hosts} hosts, {network}; a step "
            f"computes for {compute:.3g} s (it sleeps: see --help) and sends for {sends:.3g} s at that rate",
            flush=True,
        )
        return isolation.run([sys.executable, "-m", "experiments.bench.p3", *words])
    isolation.set_up()
    answer = Path(tempfile.mkdtemp()) / "answer.json"
    with Lab(args.hosts, network) as lab:
        patience = 120 + 10 * (args.pairs + 1) * (WARM_UP + args.steps) * 2 * (compute + sends)
        lab.mpirun([sys.executable, "-m", "experiments.bench.p3", *words, "--answer", str(answer)], patience)
    report(args, layers, network, json.loads(answer.read_text()))
    return 0


def report(
    args: argparse.Namespace, layers: Sequence[Layer], network: Network, found: dict[str, Any]
) -> None:
    """Print what was measured and what the simulation says, and write it to ``--json``."""
    cluster = Cluster(
        args.hosts,
        bandwidth=found["rate"],
        latency=network.latency,
        update_per_slice=UPDATE_PER_SLICE,
        update_per_value=UPDATE_PER_VALUE,
        notice=NOTICE,
    )
    print(f"measured rate of the links, both ways at once: {units.show_bandwidth(8 * found['rate'])}")
    rows = {}
    for name, method in methods(args.in_flight).items():
        times = [turn[name] for turn in found["turns"]]
        measured, predicted = statistics.median(times), simulate(layers, cluster, method).step_time
        rows[name] = {"algorithm": str(method), "seconds": times, "median": measured, "simulated": predicted}
        print(
            f"{name}: {', '.join(f'{seconds:.3f}' for seconds in times)} s; median {measured:.3f} s, "
            f"simulated {predicted:.3f} s ({100 * (predicted / measured - 1):+.1f} %)"
        )
    fifo, p3 = rows
    shorter = [1 - turn[p3] / turn[fifo] for turn in found["turns"]]
    simulated = 1 - rows[p3]["simulated"] / rows[fifo]["simulated"]
    print(
        f"P3's step is shorter by {', '.join(f'{100 * share:.1f}' for share in shorter)} %; "
        f"median {100 * statistics.median(shorter):.1f} %, simulated {100 * simulated:.1f} %",
        flush=True,
    )
    if args.json is not None:
        result = {
            "command": f"python -m experiments.bench.p3 {' '.join(sys.argv[1:])}",
            "model": args.model,
            "network": str(network),
            "compute_seconds": total(layers)[1],
            "rate": found["rate"],
            "methods": rows,
            "shorter": shorter,
            "cores": os.cpu_count(),
            "machine": collect(),
        }
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    cli.run(main)
