"""The options of `gossip.join` on any script's command line."""

from __future__ import annotations

import argparse
from typing import Any

JOIN_OPTIONS = (
    "algorithm",
    "topology",
    "compressor",
    "weights",
    "overlap",
    "progress",
    "bucket_mb",
    "order",
    "timeout",
    "device",
    "seed",
    "trace",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per option of `gossip.join` to `parser`; `join_options` reads them back.

    Raises:
        argparse.ArgumentError: the script has a flag of the same name already.
    """
    group = parser.add_argument_group(
        "decentralized training",
        "ALGORITHM, TOPOLOGY and COMPRESSOR are name or name:key=value,…; try python -m gossip list.",
    )
    add = group.add_argument
    add("--algorithm", default="dpsgd", help="what nodes send and how they mix, such as dcd (%(default)s)")
    add("--topology", default="ring", help="who talks to whom, such as torus:4x4 (%(default)s)")
    add("--compressor", help="what a message becomes, such as qsgd:bits=8 (the method's; identity for most)")
    add("--weights", default="metropolis", help="rule for the mixing weights of the graph (%(default)s)")
    add(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="hide the exchange behind the next forward and backward pass",
    )
    add(
        "--progress",
        choices=("hooks", "thread"),
        default="hooks",
        help="who drives MPI while the model computes: the model's hooks, or a thread (%(default)s)",
    )
    add("--bucket-mb", type=float, metavar="MB", help="slices that travel on their own (the method's size)")
    add(
        "--order",
        choices=("fifo", "priority"),
        help="which messages of a gradient method leave first: those ready, or the first layers' (fifo)",
    )
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds of silence before an error (%(default)g)",
    )
    add("--device", help="cpu, cuda, cuda:0, … (the GPU of this rank, or the CPU)")
    add(
        "--trace", metavar="FILE", help="write what each rank did when, for ui.perfetto.dev (.json, .json.gz)"
    )
    add("--seed", type=int, default=0, help="of the data order and the compressors' noise (%(default)s)")


def join_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments for `gossip.join` in parsed `args`: ``gossip.join(…, **join_options(args))``."""
    return {name: getattr(args, name) for name in JOIN_OPTIONS}
