"""What the laboratory's tests run inside one: ``python -m tests.mpi.laboratory hold | facts``.

`hold` imports nothing of torch, so that starting it costs little.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from experiments.netlab import isolation

BANDWIDTH, LATENCY = 20e6, 5e-3
PINGS, PAYLOAD = 20, 250_000

ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", int(sys.argv[1])))
print("up", flush=True)
while True:
    s.sendto(*s.recvfrom(100))
"""

PING = f"""
import socket, sys, time
s, times = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), []
s.settimeout(10)
for _ in range({PINGS}):
    start = time.perf_counter()
    s.sendto(b"ping", (sys.argv[1], int(sys.argv[2])))
    s.recvfrom(100)
    times.append((start, time.perf_counter()))
print(*min(times, key=lambda time: time[1] - time[0]))
"""

SINK = """
import socket, sys
server = socket.create_server(("", int(sys.argv[1])))
print("up", flush=True)
s, _ = server.accept()
while s.recv(1 << 16):
    pass
s.sendall(b"!")
"""

SOURCE = f"""
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
start = time.perf_counter()
s.sendall(bytes({PAYLOAD}))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(start, time.perf_counter())
"""

RANK = "import os; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], os.uname().nodename, flush=True)"


def hold() -> None:
    """Make an interface, a file and processes, say so, and stay until ended."""
    subprocess.run(["ip", "link", "add", "netlabtest", "type", "bridge"], check=True)
    (isolation.SCRATCH / "netlabtest").write_text("")
    subprocess.Popen(["setsid", "sleep", "1000"])
    print("holding", flush=True)
    subprocess.run(["sleep", "1000"])


def facts() -> None:
    """Three hosts: a round trip, a transfer, two at once to one host (all s), and where MPI's ranks are."""
    from experiments.netlab.lab import Lab
    from experiments.netlab.network import Network, address

    def python(host: int, program: str, *words: str) -> subprocess.Popen[str]:
        command = lab.in_host(host, [sys.executable, "-c", program, *words])
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def seconds(server: str, client: str, hosts: tuple[int, ...]) -> float:
        """From the first start to the last end of clients on these hosts, each with a server on host 0."""
        ports = [str(5000 + host) for host in hosts]
        servers = [python(0, server, port) for port in ports]
        for process in servers:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        clients = [python(host, client, address(0), port) for host, port in zip(hosts, ports, strict=True)]
        starts, ends = zip(
            *(map(float, process.communicate(timeout=60)[0].split()) for process in clients), strict=True
        )
        for process in servers:
            process.kill()
        return max(ends) - min(starts)

    with Lab(3, Network(BANDWIDTH, LATENCY)) as lab:
        log = lab.folder / "log"
        lab.mpirun([sys.executable, "-c", RANK], timeout=120, log=log)
        ranks = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("rank")]
        found: dict[str, Any] = {
            "ranks": sorted(ranks),
            "round_trip": seconds(ECHO, PING, (1,)),
            "transfer": seconds(SINK, SOURCE, (1,)),
            "two_to_one": seconds(SINK, SOURCE, (1, 2)),
        }
    left = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    print(json.dumps(found | {"left": [line.split()[0] for line in left.splitlines()]}))


if __name__ == "__main__":
    if not isolation.inside():
        sys.exit(isolation.run([sys.executable, "-m", "tests.mpi.laboratory", *sys.argv[1:]]))
    isolation.set_up()
    {"hold": hold, "facts": facts}[sys.argv[1]]()
