"""The table of P3's gain against bandwidth, and the picture of a step.

    python -m experiments.p3_simulation
    python -m experiments.p3_simulation --model vgg19 --gbits 5 --picture p3.png

How long a step computes is the images' multiply-adds over a speed that is assumed; so are the server's times.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from experiments.p3_simulation import layers, picture
from experiments.p3_simulation.simulator import BYTES, Cluster, Run, simulate
from gossip import cli, files
from gossip.algorithms.p3 import P3
from gossip.cli import non_negative_float, positive_float, positive_int
from gossip.errors import UsageError

FIFO = "FIFO, layers"
METHODS = {
    FIFO: P3(slice="layer", order="fifo"),
    "priority, layers": P3(slice="layer", order="priority"),
    "priority, slices (P3)": P3(),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m experiments.p3_simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", nargs="+", default=["vgg19", "resnet50", "alexnet"], help=f"of {', '.join(layers.MODELS)}")
    add(
        "--gbits",
        nargs="+",
        type=positive_float,
        default=[1, 2, 4, 8, 16, 32, 64],
        help="of each link, Gbit/s each way",
    )
    add("--nodes", type=positive_int, default=4, help="(%(default)s)")
    add("--images", type=positive_int, default=32, help="per node and step (%(default)s)")
    add(
        "--tflops",
        type=positive_float,
        default=2.6,
        help="sustained speed of a node, 10^12/s (%(default)s: half the peak of the paper's Quadro P4000)",
    )
    add("--latency-us", type=non_negative_float, default=50, help="one way (%(default)s)")
    add(
        "--update-ns",
        type=non_negative_float,
        default=1,
        help="a server's time per value of a slice (%(default)s)",
    )
    add(
        "--slice-us",
        type=non_negative_float,
        default=50,
        help="a server's time per slice besides (%(default)s)",
    )
    add("--slice", type=positive_int, default=P3().slice, help="most values in a slice (%(default)s)")
    add("--in-flight", type=positive_int, default=P3().in_flight, help="messages on their way (%(default)s)")
    add("--picture", type=Path, metavar="FILE", help="draw a step of the first model at the first bandwidth")
    return parser


def compare(model: Sequence[layers.Layer], cluster: Cluster, slice: int, in_flight: int) -> dict[str, Run]:
    """Simulate all methods."""
    return {
        name: simulate(
            model,
            cluster,
            dataclasses.replace(
                method, in_flight=in_flight, slice="layer" if method.slice == "layer" else slice
            ),
        )
        for name, method in METHODS.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    if args.picture is not None:
        if args.picture.suffix not in (".png", ".pdf", ".svg"):
            raise UsageError(f"--picture {args.picture}: give a name that ends in .png, .pdf or .svg")
        args.model, args.gbits = args.model[:1], args.gbits[:1]
    for model in args.model:
        compute = 6 * args.images * layers.multiply_adds(model) / (1e12 * args.tflops)
        of_model = layers.load(model, compute)
        values, _ = layers.total(of_model)
        print(
            f"{model}: {values:,} values in {len(of_model)} layers; {args.nodes} nodes, {args.images} images "
            f"each; computes for {compute:.3g} s (assumed: {args.tflops:g} TFLOP/s)\n"
            f"| Gbit/s | sends for, s | {' | '.join(f'{name}, s' for name in METHODS)} | P3's throughput |\n"
            f"|---:|---:|{'---:|' * len(METHODS)}---:|"
        )
        for gbits in args.gbits:
            cluster = Cluster(
                args.nodes,
                bandwidth=gbits * 1e9 / 8,
                latency=args.latency_us * 1e-6,
                update_per_value=args.update_ns * 1e-9,
                update_per_slice=args.slice_us * 1e-6,
            )
            runs = compare(of_model, cluster, args.slice, args.in_flight)
            times = [run.step_time for run in runs.values()]
            sends = 2 * (args.nodes - 1) / args.nodes * BYTES * values / cluster.bandwidth
            gain = 100 * (times[0] / times[-1] - 1)
            print(
                f"| {gbits:g} | {sends:.3g} | {' | '.join(f'{t:.3g}' for t in times)} | {gain:+.0f} % |",
                flush=True,
            )
            if args.picture is not None:
                title = f"{model} on {args.nodes} nodes, {gbits:g} Gbit/s (simulated): rank 0"
                with files.writing(args.picture):
                    picture.draw(runs, [layer.name for layer in of_model], title, args.picture)
        print()
    return 0


if __name__ == "__main__":
    cli.run(main)
