"""What the planner needs to know of a network: ``mpirun … python -m gossip link``, two short measurements.

All ranks exchange with both neighbours on a ring at once, first a small message, then a large one. From the
two times `Link.measure` finds the rate that messages get and the time they take besides.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from gossip import transport, units
from gossip.cli import positive_float
from gossip.errors import GossipError, UsageError
from gossip.files import writing
from gossip.flat import even_parts
from gossip.plan.cost import Exchange, Link
from gossip.transport.base import Pending, Receipt, Transport

SMALL, LARGE, LARGEST = 1 << 10, 1 << 20, 2e9
REPEATS = 5
TIMEOUT, SLOWEST = 120.0, 1e6
"""A message is waited for so many seconds, and as long as it takes at so many bit/s besides."""


def ring_neighbors(world: Transport) -> tuple[int, ...]:
    """The ranks before and after this one."""
    return tuple(sorted({(world.rank - 1) % world.size, (world.rank + 1) % world.size} - {world.rank}))


def time_exchange(
    world: Transport, neighbors: Sequence[int], size: int, repeats: int = REPEATS, pieces: int = 1
) -> float:
    """Seconds in which every rank sends `size` bytes to each neighbour and receives as many. Collective.

    The mean of `repeats` exchanges one after the other, of the slowest rank; one before them warms up, and
    takes up what ranks leave a barrier apart. Receives are posted an exchange ahead. Each payload goes in
    `pieces` messages.
    """
    lengths = [at.stop - at.start for at in even_parts(size, pieces)]
    tag = world.reserve_tags(2 * pieces)
    timeout = TIMEOUT + 8 * size * len(neighbors) / SLOWEST
    parts = torch.zeros(size, dtype=torch.uint8).split(lengths)

    def expect(turn: int) -> list[Receipt]:
        first = tag + turn % 2 * pieces
        return [world.expect(j, first + k, n) for k, n in enumerate(lengths) for j in neighbors]

    def wait(pending: Sequence[Pending]) -> None:
        if not world.wait(lambda: all(each.done for each in pending), timeout):
            raise GossipError(f"rank {world.rank}: {size} bytes have not arrived after {timeout:.0f} s.")

    sent: list[Pending] = []
    awaited = expect(0)
    world.barrier()
    start = 0.0
    for turn in range(repeats + 1):
        if turn == 1:
            start = time.perf_counter()
        following = expect(turn + 1) if turn < repeats else []
        first = tag + turn % 2 * pieces
        sent += [world.post(part, j, first + k) for k, part in enumerate(parts) for j in neighbors]
        wait(awaited)
        awaited = following
    seconds = (time.perf_counter() - start) / repeats
    wait(sent)
    return max(world.allgather(seconds))


def measure(world: Transport, small: int = SMALL, large: int = LARGE) -> tuple[Exchange, Exchange]:
    """The two measurements. Collective; needs two ranks or more."""
    neighbors = ring_neighbors(world)
    first, second = (
        Exchange(size, len(neighbors), time_exchange(world, neighbors, size)) for size in (small, large)
    )
    return first, second


def load(path: Path) -> Link:
    """The link that `run` has written."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Link.measure(*(Exchange(**facts[name]) for name in ("small", "large")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"--link {path}: {why}. Give a file from mpirun … python -m gossip link --out FILE."
        ) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``link``."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="for python -m gossip plan --link FILE")
    parser.add_argument(
        "--large",
        type=positive_float,
        default=LARGE,
        metavar="BYTES",
        help="of the long message (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Measure and print; rank 0 writes the file. Raises UsageError, and WriteError before or after."""
    world = transport.world()
    if world.size < 2:
        raise UsageError("a link joins two: mpirun -n 4 --host … python -m gossip link (one rank per host).")
    if not 2 * SMALL <= args.large <= LARGEST:
        raise UsageError(f"--large {args.large:g}: give {2 * SMALL} to {LARGEST:g} bytes.")
    if args.out is not None and world.rank == 0:
        with writing(args.out):
            args.out.open("ab").close()  # better now than after measuring
    small, large = measure(world, large=int(args.large))
    if world.rank == 0:
        link = Link.measure(small, large)
        print(
            f"{world.size} ranks on a ring, both directions at once: {units.show_bandwidth(link.bandwidth)}, "
            f"{units.show_duration(link.latency)} per message"
        )
        if world.local_size == world.size:
            print("all ranks are on one host: this is its memory, not a network")
        if args.out:
            facts = {"small": asdict(small), "large": asdict(large)}
            with writing(args.out):
                args.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    world.barrier()
