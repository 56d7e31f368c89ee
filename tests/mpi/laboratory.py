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
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5000))
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
    s.sendto(b"ping", (sys.argv[1], 5000))
    s.recvfrom(100)
    times.append(time.perf_counter() - start)
print(times)
"""

SINK = """
import socket
server = socket.create_server(("", 6000))
print("up", flush=True)
s, _ = server.accept()
while s.recv(1 << 16):
    pass
s.sendall(b"!")
"""

SOURCE = f"""
import socket, sys, time
s = socket.create_connection((sys.argv[1], 6000))
start = time.perf_counter()
s.sendall(bytes({PAYLOAD}))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print([time.perf_counter() - start])
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
    """Two hosts: round trips between them (s), the time of a transfer (s), and where MPI's ranks are."""
    from experiments.netlab.lab import Lab
    from experiments.netlab.network import Network, address

    def pair(server: str, client: str) -> Any:
        peer = subprocess.Popen(
            lab.in_host(1, [sys.executable, "-c", server]), stdout=subprocess.PIPE, text=True
        )
        assert peer.stdout is not None and peer.stdout.readline() == "up\n"
        command = lab.in_host(0, [sys.executable, "-c", client, address(1)])
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        peer.kill()
        return json.loads(answer)

    with Lab(2, Network(BANDWIDTH, LATENCY)) as lab:
        log = lab.folder / "log"
        lab.mpirun([sys.executable, "-c", RANK], timeout=120, log=log)
        ranks = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("rank")]
        found = {"round_trips": pair(ECHO, PING), "transfer": pair(SINK, SOURCE), "ranks": sorted(ranks)}
    left = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    print(json.dumps(found | {"left": [line.split()[0] for line in left.splitlines()]}))


if __name__ == "__main__":
    if not isolation.inside():
        sys.exit(isolation.run([sys.executable, "-m", "tests.mpi.laboratory", *sys.argv[1:]]))
    isolation.set_up()
    {"hold": hold, "facts": facts}[sys.argv[1]]()
