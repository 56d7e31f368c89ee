"""Which share of a link's rate neighbour exchange gets, both ways at once, by settings of MPI and of TCP.

Every host of a ring sends a payload to both neighbours and receives one from each, through the framework's
own transport, at several rates. Headers of TCP and IP alone take 3.5 % of the rate. Open MPI's defaults get
about half, for a reason that its sources and these settings show:

- A message above `btl_tcp_eager_limit` (64 KiB) is announced, its receiver consents, and then it is sent, as
  one PUT. Two ranks share one TCP connection for both directions, and on it messages go whole, in order. So
  the consent to the opposite direction's message waits behind all of this direction's: the two directions
  take turns.
- With the limit above the message there is nothing to consent to: `gossip.mpirun` sets it to 4 MiB. (The
  framework's sends are synchronous; the receiver's word that it has matched delays nobody.)
- Without PUT (`btl_tcp_flags`, in `gossip.mpirun` too) a message above the limit goes in fragments of
  `btl_tcp_max_send_size`, and the consent waits for `pml_ob1_send_pipeline_depth` of them at most. `pieces`,
  the payload in several messages below the limit, serve the same purpose.
- The congestion control is the machine's, Open MPI sets none. bbr keeps no more in flight than twice the rate
  times the *shortest* round trip, and on a ring acknowledgements wait in the queue of the opposite direction.
"""

from __future__ import annotations

import itertools
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gossip
from experiments.netlab.jobs import Job
from experiments.netlab.network import peers
from gossip.errors import GossipError
from gossip.mpirun import SEND_FLAGS
from gossip.plan import link
from gossip.transport.base import Transport

RATES, QUICK_RATES = (10e6, 100e6, 1000e6), (100e6,)
PAYLOADS = (4 * 272_474, 6 * 4 * 272_474)
"""ResNet-20 in 32 bit, and what is above the framework's eager limit."""

PIECES = (1, 8)

SLOW = 50e6
"""At rates below only the first payload is measured, in one piece."""

REPEATS = 3
TARGET = 0.9
HOSTS = 4

NO_PUT = {"btl_tcp_flags": SEND_FLAGS}
PUT = {"btl_tcp_flags": f"{SEND_FLAGS},put"}
OWN = {
    **PUT,
    "btl_tcp_eager_limit": "65536",
    "btl_tcp_rndv_eager_limit": "65536",
    "btl_tcp_max_send_size": "131072",
}
BUFFERS = {"btl_tcp_sndbuf": str(4 << 20), "btl_tcp_rcvbuf": str(4 << 20)}
MIB = str(1 << 20)

FRAMEWORK = "the framework's"

SETTINGS: Mapping[str, Mapping[str, str]] = {
    FRAMEWORK: {},
    "the framework's, with PUT": PUT,
    "the framework's, socket buffers of 4 MiB": BUFFERS,
    "Open MPI's own": OWN,
    "fragments, no PUT": {**OWN, **NO_PUT},
    "fragments of 1 MiB, no PUT": {**OWN, **NO_PUT, "btl_tcp_max_send_size": MIB},
    "fragments, no PUT, 16 in flight": {**OWN, **NO_PUT, "pml_ob1_send_pipeline_depth": "16"},
    "1 MiB before the PUT": {**OWN, "btl_tcp_rdma_pipeline_send_length": MIB},
    "two links": {**OWN, "btl_tcp_links": "2"},
    "socket buffers of 4 MiB": {**OWN, **BUFFERS},
    "progress thread": {**OWN, "btl_tcp_progress_thread": "1"},
    "libfabric over TCP": {"pml": "cm", "mtl": "ofi", "mtl_ofi_provider_include": "tcp"},
}
"""Name -> MCA parameters; they override the framework's. One job each."""

QUICK = (FRAMEWORK, "Open MPI's own")
TELLING = (*QUICK, "the framework's, with PUT")
PLAIN = "plain sockets"

Row = dict[str, Any]


def task(job: Job) -> None:
    """Measure on a network of this rate, under this job's settings; the answer is a list of rows."""
    world = gossip.world()
    rate, rows = job.options["rate"], list[Row]()
    for payload, pieces in cases(rate):
        seconds = link.time_exchange(world, link.ring_neighbors(world), payload, REPEATS, pieces)
        rows.append(_row(world, job.options["setting"], payload, pieces, rate, seconds))
    if job.options["plain"]:
        for payload in dict(cases(rate)):
            rows.append(_row(world, PLAIN, payload, 1, rate, _time_plain(world, payload)))
    job.reply(world.rank, rows)
    world.barrier()


def cases(rate: float) -> list[tuple[int, int]]:
    """What is sent at this rate: bytes to each neighbour, and in how many pieces."""
    return list(itertools.product(PAYLOADS, PIECES)) if rate >= SLOW else [(PAYLOADS[0], 1)]


def _row(world: Transport, setting: str, payload: int, pieces: int, rate: float, seconds: float) -> Row:
    """Goodput is the share of the rate that payload got."""
    sent = 8 * payload * len(link.ring_neighbors(world))
    return {
        "setting": setting,
        "payload": payload,
        "pieces": pieces,
        "rate": rate,
        "seconds": seconds,
        "goodput": sent / rate / seconds,
    }


def _time_plain(world: Transport, payload: int) -> float:
    """`link.time_exchange` without MPI, by non-blocking sockets: what the network itself can do."""
    with _Sockets(world) as sockets:
        world.barrier()
        sockets.exchange(payload)
        start = time.perf_counter()
        for _ in range(REPEATS):
            sockets.exchange(payload)
        return max(world.allgather((time.perf_counter() - start) / REPEATS))


class _Sockets:
    """A connection to each neighbour on the ring, and one from each."""

    def __init__(self, world: Transport) -> None:
        addresses = peers(world)
        with socket.create_server(("", 0)) as server:
            ports = world.allgather(server.getsockname()[1])
            neighbors = link.ring_neighbors(world)
            self._out = [socket.create_connection((addresses[j], ports[j])) for j in neighbors]
            self._in = [server.accept()[0] for _ in neighbors]
        for connection in (*self._out, *self._in):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> _Sockets:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (*self._out, *self._in):
            connection.close()

    def exchange(self, size: int) -> None:
        """Send `size` bytes on every connection out and receive as many on every one in."""
        data = memoryview(bytes(size))
        done = dict.fromkeys((*self._out, *self._in), 0)
        with selectors.DefaultSelector() as selector:
            for out in self._out:
                selector.register(out, selectors.EVENT_WRITE, out)
            for into in self._in:
                selector.register(into, selectors.EVENT_READ, into)
            while selector.get_map():
                for key, event in selector.select():
                    connection: socket.socket = key.data
                    done[connection] += self._advance(connection, event, data[done[connection] :])
                    if done[connection] == size:
                        selector.unregister(connection)

    @staticmethod
    def _advance(connection: socket.socket, event: int, rest: memoryview) -> int:
        if event == selectors.EVENT_WRITE:
            return connection.send(rest)
        received = len(connection.recv(min(len(rest), 1 << 20)))
        if received == 0:
            raise GossipError("a neighbour closed its connection in the middle of an exchange")
        return received


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line per congestion control, setting, payload and number of pieces; a column per rate."""
    rates = sorted({row["rate"] for row in rows})
    yield (
        "| TCP | setting | payload, MB | pieces | " + " | ".join(f"{r / 1e6:g} Mbit/s" for r in rates) + " |"
    )
    yield "| --- | --- | ---: | ---: |" + " ---: |" * len(rates)
    lines: dict[tuple[Any, ...], dict[float, float]] = {}
    for row in rows:
        key = row["congestion"], row["setting"], f"{row['payload'] / 1e6:.2f}", row["pieces"]
        lines.setdefault(key, {})[row["rate"]] = row["goodput"]
    for key, found in lines.items():
        yield f"| {' | '.join(map(str, (*key, *(_cell(found.get(rate)) for rate in rates))))} |"


def _cell(goodput: float | None) -> str:
    if goodput is None:
        return "–"
    return f"**{100 * goodput:.0f} %**" if goodput >= TARGET else f"{100 * goodput:.0f} %"
