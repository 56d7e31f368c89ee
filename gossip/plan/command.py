"""``python -m gossip plan``: which method, graph and codec for this network."""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from gossip import units
from gossip.errors import UsageError
from gossip.plan import ranking
from gossip.plan.cost import Link
from gossip.plan.link import load
from gossip.plan.ranking import Plan

SHOWN, DOUBTFUL_SHOWN = 15, 5

LEGEND = """\
step: time of an optimizer step; exchange: of it on the network; exposed: not hidden behind computing;
encoding and decoding, timed on this machine, are in the step alone; times are compared in steps of 2 %.
sent/step: of the busiest node, at most, MB = 10^6 bytes; gap: share of the nodes' disagreement that one
exchange removes.
A step of a method with a small gap brings less: compare methods by training, speed by this table."""

OF_SHAPES = ("powersgd",)
"""Methods whose messages depend on the shapes so much that a number of parameters says nothing about them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``plan``."""
    add = parser.add_argument
    add("--bandwidth", metavar="RATE", help="what a node may send, such as 100Mbit")
    add("--latency", metavar="TIME", help="one way, such as 5ms (half the ping)")
    add(
        "--link",
        type=Path,
        metavar="FILE",
        help="measured, by mpirun … python -m gossip link, in their place",
    )
    add("--nodes", type=int, required=True, metavar="N", help="how many take part")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--parameters", type=float, metavar="N", help="of the model, such as 25.6e6")
    size.add_argument(
        "--model", metavar="MODULE:FUNCTION[:ARGUMENT]", help="such as torchvision.models:resnet50"
    )
    add("--compute", default="0s", metavar="TIME", help="forward, backward and optimizer, such as 200ms (0s)")
    add("--algorithm", nargs="+", metavar="SPEC", help="only these methods")
    add("--topology", nargs="+", metavar="SPEC", help="only these graphs")
    add("--compressor", nargs="+", metavar="SPEC", help="only these, where one is used")
    add("--no-overlap", dest="overlap", action="store_false", help="exchange and compute in turn")
    add("--all", action="store_true", help=f"all combinations, not the best {SHOWN}")
    add("--json", action="store_true", help="as JSON: seconds and bytes")


def run(args: argparse.Namespace) -> None:
    """Print the ranking. Raises UsageError."""
    link, compute = _link(args), units.duration(args.compute)
    if not 1 <= args.nodes <= MOST_NODES:
        raise UsageError(f"--nodes {args.nodes}: give 1 to {MOST_NODES}.")
    model = from_spec(args.model) if args.model else matrix(args.parameters)
    algorithms = args.algorithm or [
        name for name in ranking.ALGORITHMS if args.model or name not in OF_SHAPES
    ]
    plans = ranking.rank(
        model, args.nodes, link, compute, algorithms, args.topology, args.compressor, args.overlap
    )
    if args.json:
        print(json.dumps({"link": asdict(link), "plans": [asdict(plan) for plan in plans]}, indent=1))
        return
    print("\n".join(heading(args, model, link, compute)) + "\n")
    shown = (len(plans), len(plans)) if args.all else (SHOWN, DOUBTFUL_SHOWN)
    print("\n".join(table(plans, *shown)))
    if not (args.model or args.algorithm):
        print(f"Left out, because it takes the shapes to tell: {', '.join(OF_SHAPES)} (give --model).")


def heading(args: argparse.Namespace, model: nn.Module, link: Link, compute: float) -> Iterator[str]:
    """What the ranking is for, and how sure the link model is."""
    values = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rate, latency = units.show_bandwidth(link.bandwidth), units.show_duration(link.latency)
    how = "overlapped with the exchange" if args.overlap else "then the exchange"
    known = "measured" if link.measured else "assumed; measure with mpirun … python -m gossip link"
    yield f"{args.nodes} nodes, {rate}, {latency} one way"
    yield f"{values:,} values{'' if args.model else ' in one matrix'}"
    yield f"{units.show_duration(compute)} of computing per step, {how}"
    overhead = units.show_duration(link.overhead)
    yield f"messages get {100 * link.goodput:.0f} % of the rate, each takes {overhead} more ({known})"


def table(plans: Sequence[Plan], shown: int, doubtful_shown: int) -> Iterator[str]:
    """The ranking for people: what theory has nothing against, what it warns about, and notes on both."""
    sound = [plan for plan in plans if not plan.warnings]
    doubtful = [plan for plan in plans if plan.warnings]
    yield f"{'':3}  {'step':>9}  {'exchange':>9}  {'exposed':>9}  {'sent/step':>10}  {'gap':>6}  method"
    yield from _rows(sound, shown, marks=[str(i) for i in range(1, shown + 1)])
    if doubtful:
        yield "\nTheory warns about these:"
        yield from _rows(doubtful, doubtful_shown, marks=["!"] * doubtful_shown)
    listed = [*sound[:shown], *doubtful[:doubtful_shown]]
    yield ""
    texts = dict.fromkeys(text for plan in listed for text in (*plan.warnings, *plan.notes))
    yield from (f"- {text}" for text in texts)
    yield LEGEND


def _rows(plans: Sequence[Plan], shown: int, marks: Sequence[str]) -> Iterator[str]:
    yield from (_line(mark, plan) for mark, plan in zip(marks, plans[:shown], strict=False))
    if len(plans) > shown:
        yield f"     … and {len(plans) - shown} more (--all)"


def _line(mark: str, plan: Plan) -> str:
    t = plan.time
    times = "  ".join(f"{units.show_duration(s):>9}" for s in (t.total, t.exchange, t.exposed))
    gap = f"{plan.spectral_gap:.4f}" if plan.spectral_gap < 1 else "1"
    return f"{mark:>3}  {times}  {plan.sent / 1e6:7.3f} MB  {gap:>6}  {plan.name}"


def _link(args: argparse.Namespace) -> Link:
    if args.link is not None:
        if args.bandwidth or args.latency:
            raise UsageError("--link holds bandwidth and latency already: leave the two out.")
        return load(args.link)
    if not (args.bandwidth and args.latency):
        raise UsageError("give --bandwidth and --latency, such as 100Mbit and 5ms, or --link FILE.")
    return Link(units.bandwidth(args.bandwidth), units.duration(args.latency))


MOST_PARAMETERS, MOST_NODES = 1e13, 2048
"""Of a mixing matrix all n² weights are made."""


def matrix(values: float) -> nn.Module:
    """A model that is one matrix of so many values, on the meta device.

    It is at most about four times as wide as high. Where so many values make none (a prime number's would be
    one row), it has the fewest values less that do; of what is left, the most square.
    """
    if not (1 <= values <= MOST_PARAMETERS and values == int(values)):
        raise UsageError(
            f"--parameters {values:g}: give a whole number up to {MOST_PARAMETERS:g}, such as 25.6e6."
        )
    n = int(values)
    rows = min(range(math.isqrt(n), math.isqrt(n // 4), -1), key=lambda k: n % k)
    return nn.Linear(n // rows, rows, bias=False, device="meta")


def from_spec(spec: str) -> nn.Module:
    """The model that ``module:function`` or ``module:function:argument`` makes, on the meta device."""
    module, _, call = spec.partition(":")
    function, _, argument = call.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
        with torch.device("meta"):
            model = make(*([argument] if argument else []))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UsageError(
            f"--model {spec}: {error}. Give what makes the model, such as experiments.models:build:resnet20 "
            "or (pip install torchvision) torchvision.models:resnet50, or --parameters 25.6e6."
        ) from None
    if not isinstance(model, nn.Module):
        raise UsageError(f"--model {spec} makes a {type(model).__name__}, not a torch module.")
    return model
