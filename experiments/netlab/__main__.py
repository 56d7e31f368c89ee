"""``python -m experiments.netlab sweep | goodput | all | report | run``: training on shaped networks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import models
from experiments.netlab import goodput, isolation, own_job, report, requirements
from experiments.netlab.benchmark import Goodput, congestions
from experiments.netlab.compute import Compute
from experiments.netlab.lab import MAX_HOSTS
from experiments.netlab.methods import METHODS, choose
from experiments.netlab.network import Network
from experiments.netlab.own_job import OwnJob
from experiments.netlab.results import Results, machine
from experiments.netlab.running import say
from experiments.netlab.sweep import Sweep
from gossip import units
from gossip.cli import ArgumentParser, non_negative_int, positive_float, positive_int, run
from gossip.errors import UsageError
from gossip.files import writing


@dataclass(frozen=True)
class Defaults:
    """What is measured where the user does not say."""

    bandwidths: tuple[str, ...]
    latencies: tuple[str, ...]
    hosts: int
    seconds: float
    loss_steps: int
    settings: tuple[str, ...]
    rates: tuple[float, ...]


SLOWEST, LONGEST = 1e4, 60.0
"""bit/s and seconds beyond which nothing can be measured in anybody's time."""

FULL = Defaults(
    bandwidths=("1.4Gbit", "100Mbit", "20Mbit", "5Mbit"),
    latencies=("0.13ms", "5ms", "20ms"),
    hosts=8,
    seconds=3.0,
    loss_steps=120,
    settings=tuple(goodput.SETTINGS),
    rates=goodput.RATES,
)
QUICK = Defaults(
    bandwidths=("1.4Gbit", "50Mbit"),
    latencies=("0.13ms", "20ms"),
    hosts=4,
    seconds=1.0,
    loss_steps=12,
    settings=goodput.QUICK,
    rates=goodput.QUICK_RATES,
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    if args.command == "report":
        return _report(args.out)
    if args.command == "run":
        return _run(_own_job(args), words)
    sweep, benchmark = _sweep(args), _goodput(args)
    results = Results(args.out / "results.json", _about(args, sweep, benchmark))
    if isolation.inside():
        isolation.set_up()
        return _measure(results, sweep, benchmark)
    requirements.check(args.out)
    with writing(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        there = report.files(args.out)
        if there and not args.overwrite:
            names = ", ".join(file.name for file in there)
            raise UsageError(f"{args.out} holds {names} already: give another --out, or --overwrite.")
        for file in there:
            file.unlink()
    seconds = sum(part.estimate() for part in (sweep, benchmark) if part is not None)
    say(f"about {max(1, round(seconds / 60))} minutes; log: {args.out / 'log.txt'}")
    code = isolation.run([sys.executable, "-m", "experiments.netlab", *words])
    if results.path.exists():
        _report(args.out)
    return code


def _run(job: OwnJob, words: Sequence[str]) -> int:
    if isolation.inside():
        isolation.set_up()
        job.run()
        return 0
    requirements.check()
    return isolation.run([sys.executable, "-m", "experiments.netlab", *words])


def _measure(results: Results, sweep: Sweep | None, benchmark: Goodput | None) -> int:
    """Everything that needs the hosts. 1 if something could not be measured."""
    started = time.monotonic()
    for part in (benchmark, sweep):
        if part is not None:
            part.run(results)
    results.about["minutes"] = (time.monotonic() - started) / 60
    results.save()
    return 1 if results.failed else 0


def _report(folder: Path) -> int:
    """Tables and pictures; prints the judgements."""
    results = Results.load(folder)
    for heading, found in report.verdicts(results).items():
        say(f"{heading}:")
        for verdict in found:
            say(f"  {verdict.word:12} {verdict.claim}" + f": {verdict.numbers}" * bool(verdict.numbers))
    say("\n".join(map(str, report.write(results))))
    return 0


def _about(args: argparse.Namespace, sweep: Sweep | None, benchmark: Goodput | None) -> dict[str, object]:
    about: dict[str, object] = {**machine(), "congestion": _congestions(args)[0]}
    if sweep is not None:
        about |= {
            "hosts": sweep.hosts,
            "model": sweep.compute.model,
            "batch_size": sweep.compute.batch_size,
            "compute_seconds": sweep.compute.seconds,
            "compute": str(sweep.compute),
            "jitter": args.jitter if sweep.networks[0].jitter else "",
            "slow": [list(pair) for pair in sweep.compute.slow],
            "losses": f"{sweep.loss_steps} steps, bfloat16",
        }
    if benchmark is not None:
        about["goodput"] = f"{benchmark.hosts} hosts, {units.show_duration(benchmark.latency)} one way"
    return about


# -- options -----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(prog="python -m experiments.netlab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    own_job.add_arguments(commands.add_parser("run", help="a command of your own on such a network"))
    for name, text in (
        ("all", "sweep and goodput: every table and picture"),
        ("sweep", "time per step of methods on networks, losses, and what follows from them"),
        ("goodput", "the share of the rate that neighbour exchange gets, by settings of MPI"),
        ("report", "tables and pictures of finished measurements anew; needs no root"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="for results, tables, pictures"
        )
        if name == "report":
            continue
        add = command.add_argument
        add("--overwrite", action="store_true", help="replace the results in DIR")
        add("--quick", action="store_true", help="few networks, settings and steps on 4 hosts: minutes")
        few = f"{goodput.HOSTS} for goodput"
        of_sweep = f"{FULL.hosts}; {QUICK.hosts} with --quick"
        hosts = {"all": f"{of_sweep}; {few}", "sweep": of_sweep, "goodput": few}[name]
        add("--hosts", type=int, metavar="N", help=f"({hosts})")
        add(
            "--congestion",
            nargs="+",
            metavar="NAME",
            help="TCP's congestion controls; the sweep uses the first (reno, where allowed)",
        )
        if name != "sweep":
            add("--settings", nargs="+", metavar="NAME", help=f"of MPI: {', '.join(goodput.SETTINGS)}")
            add("--goodput-latency", default="0.13ms", metavar="TIME", help="(%(default)s)")
        if name != "goodput":
            _add_sweep_arguments(command)
    return parser


def _add_sweep_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--bandwidths", nargs="+", metavar="RATE", help=f"({' '.join(FULL.bandwidths)})")
    add("--latencies", nargs="+", metavar="TIME", help=f"one way ({' '.join(FULL.latencies)})")
    add("--jitter", default="0ms", metavar="TIME", help="a packet takes up to so much more (%(default)s)")
    add("--methods", nargs="+", default=list(METHODS), metavar="KEY", help=f"({' '.join(METHODS)})")
    add("--compute", default="135ms", metavar="TIME|real", help="fixed time of a step, or real (%(default)s)")
    add("--model", default="resnet20", help="whose parameters are sent (%(default)s)")
    add("--batch-size", type=positive_int, default=32, metavar="B", help="per host and step (%(default)s)")
    add("--slow", nargs="+", default=[], metavar="HOST:FACTOR", help="stragglers, such as 3:2")
    add("--seconds", type=positive_float, metavar="S", help=f"per method and network ({FULL.seconds:g})")
    add(
        "--loss-steps",
        type=non_negative_int,
        metavar="N",
        help=f"of training; 0: no losses ({FULL.loss_steps})",
    )


def _own_job(args: argparse.Namespace) -> OwnJob:
    if not 1 <= args.hosts <= MAX_HOSTS:
        raise UsageError(f"--hosts {args.hosts}: give 1 to {MAX_HOSTS}.")
    latency, jitter = _delay("--latency", args.latency), _delay("--jitter", args.jitter)
    congestion = congestions([args.congestion], quick=True)[0] if args.congestion else None
    words = args.command_line
    return OwnJob(
        hosts=args.hosts,
        network=Network(units.bandwidth(args.bandwidth), latency, jitter, congestion),
        command=words[1:] if words[:1] == ["--"] else words,
    )


def _defaults(args: argparse.Namespace) -> Defaults:
    return QUICK if args.quick else FULL


def _hosts(args: argparse.Namespace) -> int:
    hosts: int = _defaults(args).hosts if args.hosts is None else args.hosts
    if not 2 <= hosts <= MAX_HOSTS:
        raise UsageError(f"--hosts {hosts}: give 2 to {MAX_HOSTS}.")
    return hosts


def _congestions(args: argparse.Namespace) -> tuple[str, ...]:
    return congestions(args.congestion, args.quick)


def _sweep(args: argparse.Namespace) -> Sweep | None:
    if args.command == "goodput":
        return None
    defaults, hosts = _defaults(args), _hosts(args)
    models.build(args.model)
    if models.name_of(args.model) not in models.IMAGE_MODELS:
        raise UsageError(f"--model {args.model}: choose one for images, such as resnet20.")
    bandwidths = [units.bandwidth(text) for text in args.bandwidths or defaults.bandwidths]
    if min(bandwidths) < SLOWEST:
        raise UsageError(f"--bandwidths: give {units.show_bandwidth(SLOWEST)} or more.")
    latencies = [_delay("--latencies", text) for text in args.latencies or defaults.latencies]
    jitter, congestion = _delay("--jitter", args.jitter), _congestions(args)[0]
    slow = [_slow(text, hosts) for text in args.slow]
    if len(dict(slow)) < len(slow):
        raise UsageError("--slow: a host is named twice.")
    return Sweep(
        hosts=hosts,
        networks=tuple(Network(b, latency, jitter, congestion) for b in bandwidths for latency in latencies),
        methods=choose(args.methods),
        compute=Compute(
            model=args.model,
            batch_size=args.batch_size,
            seconds=_compute(args.compute),
            slow=tuple(slow),
        ),
        seconds=defaults.seconds if args.seconds is None else args.seconds,
        loss_steps=defaults.loss_steps if args.loss_steps is None else args.loss_steps,
    )


def _compute(text: str) -> float | None:
    if text == "real":
        return None
    seconds = units.duration(text)
    if not 0 < seconds <= LONGEST:
        raise UsageError(
            f"--compute {text}: give a time above 0, up to {LONGEST:g} s, such as 135ms, or real."
        )
    return seconds


def _delay(option: str, text: str) -> float:
    seconds = units.duration(text)
    if seconds > LONGEST:
        raise UsageError(f"{option} {text}: give up to {LONGEST:g} s, such as 5ms.")
    return seconds


def _slow(text: str, hosts: int) -> tuple[int, float]:
    host, _, factor = text.partition(":")
    try:
        slow = int(host), float(factor)
    except ValueError:
        slow = -1, 0.0
    if not (0 <= slow[0] < hosts and 1 <= slow[1] <= 1000):
        raise UsageError(f"--slow {text}: give HOST:FACTOR, a host from 0 to {hosts - 1} and 1 to 1000: 3:2.")
    return slow


def _goodput(args: argparse.Namespace) -> Goodput | None:
    if args.command == "sweep":
        return None
    for name in args.settings or ():
        if name not in goodput.SETTINGS:
            raise UsageError(f"--settings {name!r}: there is {', '.join(map(repr, goodput.SETTINGS))}.")
    return Goodput(
        hosts=goodput.HOSTS if args.hosts is None else _hosts(args),
        settings=tuple(args.settings or _defaults(args).settings),
        congestions=_congestions(args),
        latency=units.duration(args.goodput_latency),
        rates=_defaults(args).rates,
    )


if __name__ == "__main__":
    run(main)
