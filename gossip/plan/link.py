"""What the planner needs to know of a network, from two short measurements: ``mpirun … python -m gossip link``.

All ranks exchange with both neighbours on a ring at once, first a small message, then a large one. From the two
times `Link.measure` finds the rate that messages get and the time they take besides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from gossip import transport, units
from gossip.errors import GossipError, UsageError
from gossip.plan.cost import Exchange, Link
from gossip.transport import Transport

SMALL, LARGE = 1 << 10, 1 << 20
REPEATS = 5
TIMEOUT = 120.0


def ring_neighbors(world: Transport) -> tuple[int, ...]:
    """The ranks before and after this one."""
    return tuple(sorted({(world.rank - 1) % world.size, (world.rank + 1) % world.size} - {world.rank}))


def time_exchange(
    world: Transport, neighbors: Sequence[int], size: int, repeats: int = REPEATS, pieces: int = 1
) -> list[float]:
    """Seconds until every rank has sent `size` bytes to each neighbour and has got as many. Collective.

    Receives are posted first, all sends start at once, each payload in `pieces` messages. One value per repeat,
    of the slowest rank; an exchange before them warms the connections up.
    """
    cuts = [size * k // pieces for k in range(pieces + 1)]
    lengths = [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
    tag = world.reserve_tags(pieces)
    payload = torch.zeros(size, dtype=torch.uint8)
    times = []
    for _ in range(repeats + 1):
        expected = [world.expect(j, tag + k, n) for j in neighbors for k, n in enumerate(lengths)]
        world.barrier()
        start = time.perf_counter()
        posted = [
            world.post(part, j, tag + k) for k, part in enumerate(payload.split(lengths)) for j in neighbors
        ]
        if not world.wait(lambda expected=expected: all(e.done for e in expected), TIMEOUT):  # type: ignore[misc]
            raise GossipError(f"rank {world.rank}: an exchange of {size} bytes is not done after {TIMEOUT:g} s.")
        times.append(time.perf_counter() - start)
        world.wait(lambda posted=posted: all(p.done for p in posted), TIMEOUT)  # type: ignore[misc]
    return [max(each) for each in zip(*world.allgather(times[1:]), strict=True)]


def measure(world: Transport, small: int = SMALL, large: int = LARGE) -> tuple[Exchange, Exchange]:
    """The two measurements: medians of `REPEATS`. Collective; needs two ranks or more."""
    neighbors = ring_neighbors(world)
    first, second = (
        Exchange(size, len(neighbors), statistics.median(time_exchange(world, neighbors, size)))
        for size in (small, large)
    )
    return first, second


def load(path: Path) -> Link:
    """The link that `run` has written."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Link.measure(*(Exchange(**facts[name]) for name in ("small", "large")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--link {path}: {error!r}. Give the file that mpirun … python -m gossip link --out FILE has written."
        ) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``link``."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="for python -m gossip plan --link FILE")
    parser.add_argument("--large", type=float, default=LARGE, metavar="BYTES", help="of the large message (%(default)s)")


def run(args: argparse.Namespace) -> None:
    """Measure and print; rank 0 writes the file. Raises UsageError."""
    world = transport.world()
    if world.size < 2:
        raise UsageError("a link joins two: mpirun -n 4 --host … python -m gossip link (one rank per host).")
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
            args.out.write_text(json.dumps({"small": asdict(small), "large": asdict(large)}, indent=1) + "\n")
    world.barrier()
