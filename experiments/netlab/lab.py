"""Hosts on one machine: a network namespace each, joined by links with a bandwidth and a latency.

    with Lab(hosts=8, network=Network(bandwidth=100e6, latency=5e-3)) as lab:
        lab.mpirun([sys.executable, "-m", "script"], timeout=60)

A host is a process that does nothing but hold a network namespace and a host name of its own. It has two
interfaces: `control` reaches the laboratory itself, unshaped, and carries only mpirun's own traffic; `net0`
is the shaped network: the kernel's token bucket limits what a host sends, the relay (relay.c) delays it and
limits what a host receives. Works only inside `isolation.run`, whose end is also the end of every host.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from experiments.netlab.network import DEVICE, Network, address, shaping
from gossip.errors import GossipError
from gossip.mpirun import MPIRUN_ENVIRONMENT

CONTROL = "10.77.0"
"""The unshaped network: the laboratory is .254 on it, host k .(k + 1)."""

MAX_HOSTS = 200

AGENT = """\
#!/bin/sh
# What mpirun takes for ssh: agent [-options] HOST COMMAND…
while :; do case $1 in -*) shift ;; *) break ;; esac; done
pid=$(cat "{folder}/$1") || exit 1
shift
exec nsenter --net=/proc/$pid/ns/net --uts=/proc/$pid/ns/uts -- sh -c "$*"
"""


class Lab:
    """Some hosts on a network; a context manager.

    Attributes:
        hosts: their number. Their names are h0, h1, …
        network: what joins them.
        folder: a place for files, gone after the laboratory.
    """

    def __init__(self, hosts: int, network: Network) -> None:
        self.hosts, self.network = hosts, network
        self.names = [f"h{k}" for k in range(hosts)]
        self._open = contextlib.ExitStack()
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Lab:
        with contextlib.ExitStack() as undo:
            self._open = undo
            self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="lab-")))
            self._wire()
            self._start_relay()
            self._shape()
            self._write_agent()
            self._open = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    # -- making ------------------------------------------------------------------------------------

    def _wire(self) -> None:
        """Start the hosts and join them to the laboratory by a bridge."""
        _do("ip", "link", "add", "control", "type", "bridge")
        self._open.callback(_remove, "control")
        _do("ip", "addr", "add", f"{CONTROL}.254/24", "dev", "control")
        _do("ip", "link", "set", "control", "up")
        for k, name in enumerate(self.names):
            # It ends when its standard input does, which is when this process lets go of it.
            script = f"echo {name} > /proc/sys/kernel/hostname && ip link set lo up && echo up && exec cat"
            holder = self._keep(["unshare", "--net", "--uts", "sh", "-c", script])
            _expect(holder, "up")
            self._holders.append(holder)
            port = f"port{k}"
            _do(
                "ip", "link", "add", port, "type", "veth", "peer", "name", "control", "netns", str(holder.pid)
            )
            self._open.callback(_remove, port)  # now: the kernel takes a dead host's down when it likes
            _do("ip", "link", "set", port, "master", "control", "up")
            self._in_host(k, f"ip addr add {CONTROL}.{k + 1}/24 dev control && ip link set control up")

    def _start_relay(self) -> None:
        program = self.folder / "relay"
        source = Path(__file__).with_name("relay.c")
        _do("cc", "-std=gnu11", "-O2", "-o", str(program), str(source))
        microseconds = [f"{1e6 * seconds:.1f}" for seconds in (self.network.relay_delay, self.network.jitter)]
        rate = f"{self.network.bandwidth or 0:.0f}"
        hosts = [str(holder.pid) for holder in self._holders]
        relay = self._keep([str(program), DEVICE, rate, *microseconds, *hosts])
        _expect(relay, "ready")

    def _shape(self) -> None:
        for k in range(self.hosts):
            script = f"ip addr add {address(k)}/24 dev {DEVICE} && ip link set {DEVICE} up txqueuelen 10000"
            script += f" && {' '.join(shaping(self.network.bandwidth))}"
            if self.network.congestion:
                script += f" && echo {self.network.congestion} > /proc/sys/net/ipv4/tcp_congestion_control"
            self._in_host(k, script)

    def _write_agent(self) -> None:
        for name, holder in zip(self.names, self._holders, strict=True):
            (self.folder / name).write_text(str(holder.pid))
        names = [f"{CONTROL}.{k + 1} {name}" for k, name in enumerate(self.names)]
        hosts = self.folder / "hosts"
        hosts.write_text(
            "\n".join(["127.0.0.1 localhost", f"{CONTROL}.254 {os.uname().nodename}", *names, ""])
        )
        _do("mount", "--bind", str(hosts), "/etc/hosts")
        self._open.callback(_do, "umount", "/etc/hosts")
        agent = self.folder / "agent"
        agent.write_text(AGENT.format(folder=self.folder))
        agent.chmod(0o700)

    def _keep(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process that ends with the laboratory."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

        def end() -> None:
            process.kill()
            process.communicate()

        self._open.callback(end)
        return process

    # -- using -------------------------------------------------------------------------------------

    def in_host(self, k: int, command: Sequence[str]) -> list[str]:
        """What to run so that `command` runs on host k."""
        spaces = [f"--{kind}=/proc/{self._holders[k].pid}/ns/{kind}" for kind in ("net", "uts")]
        return ["nsenter", *spaces, "--", *command]

    def _in_host(self, k: int, script: str) -> None:
        _do(*self.in_host(k, ["sh", "-c", script]))

    def mpirun(
        self,
        command: Sequence[str],
        timeout: float | None,
        settings: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        """Run `command` as one MPI rank per host, over TCP on the shaped network.

        Args:
            command: every rank's.
            timeout: seconds after which the job is ended; None: never.
            settings: MCA parameters of Open MPI, ``{"btl_tcp_eager_limit": "1048576"}``; they win.
            log: where the ranks' output goes; None for this process's.

        Raises:
            GossipError: the job failed or took too long; the last lines of its log are in the message.
        """
        parameters = {
            "pml": "ob1",
            "btl": "tcp,self",
            "btl_tcp_if_include": DEVICE,
            **(settings or {}),
        }
        words = ["mpirun", "-n", str(self.hosts), "--host", ",".join(self.names), "--map-by", "node"]
        words += ["--bind-to", "none", "--prtemca", "plm", "ssh"]
        words += ["--prtemca", "plm_ssh_agent", str(self.folder / "agent")]
        for name, value in parameters.items():
            words += ["--mca", name, value]
        # libfabric, where a setting chooses it, must not find the unshaped network either.
        environment = {**os.environ, **MPIRUN_ENVIRONMENT, "OMP_NUM_THREADS": "1", "FI_TCP_IFACE": DEVICE}
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("ab")) if log else None
            process = subprocess.Popen(
                [*words, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # mpirun ends its ranks when told to; what is deaf to that ends with the sweep.
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
        if code != 0:
            how = f"exit code {code}" if code is not None else f"not done after {timeout} s"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log else ""
            raise GossipError(f"the job on {self.hosts} hosts ({self.network}) failed: {how}\n{tail}")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise GossipError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")


def _remove(device: str) -> None:
    """Take an interface away, if it has not gone with its host."""
    subprocess.run(["ip", "link", "del", device], capture_output=True)


def _expect(process: subprocess.Popen[bytes], word: str) -> None:
    """Wait for the line by which a helper says that it is there."""
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    if line != word:
        raise GossipError(f"{process.args!r} did not start (it said {line!r})")
