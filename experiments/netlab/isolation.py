"""A place on this machine where the laboratory can do what it likes, and that ends with it.

`run` starts a command as process 1 of namespaces of its own: processes, network, mounts, host name. Whatever
it makes there (hosts, interfaces, temporary files) nobody else can see or collide with, so any number of
laboratories may run at once. When its process 1 ends, the kernel ends every process inside and takes the rest
down; and process 1 is killed when `run`'s process ends, in whatever way, SIGKILL included. So there is nothing
that could be left over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gossip.errors import UsageError

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "util-linux",
    "cc": "gcc (or another C compiler named cc)",
}
"""Commands that are needed -> the package of most distributions that has them."""

SCRATCH = Path("/dev/shm")
"""Temporary files: the laboratory mounts a tmpfs of its own here."""

_MARK = "GOSSIP_NETLAB_INSIDE"


def inside() -> bool:
    """Whether this process is one that `run` has started."""
    return os.environ.get(_MARK) == "1" and os.getpid() == 1


def run(command: Sequence[str]) -> int:
    """Run `command` inside; returns its exit code, 128 + the signal's number if this process got one.

    Raises:
        UsageError: no root, a tool is missing, or the kernel refuses namespaces; says what to do.
    """
    check()
    process = subprocess.Popen(
        [*_wrapper(), *command],
        env={**os.environ, _MARK: "1"},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        with _signals_as_exceptions():
            return process.wait()
    except _Signalled as signalled:
        print(f"\nstopped by {signal.Signals(signalled.number).name}", file=sys.stderr, flush=True)
        return 128 + signalled.number
    finally:
        process.kill()
        process.wait()


def check() -> None:
    """Raise UsageError unless a laboratory can be made here."""
    if not sys.platform.startswith("linux"):
        raise UsageError(f"the network laboratory needs Linux's network namespaces; this is {sys.platform}.")
    if os.geteuid() != 0:
        raise UsageError("the network laboratory makes network namespaces and must run as root: sudo -E …")
    missing = {tool: package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if missing:
        packages = ", ".join(dict.fromkeys(missing.values()))
        raise UsageError(
            f"the network laboratory needs {', '.join(missing)}, not found here: install {packages}."
        )
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise UsageError(
            "the network laboratory needs /dev/net/tun: modprobe tun, or docker run --device /dev/net/tun."
        )
    for path in (Path.cwd(), Path(sys.prefix)):
        if SCRATCH in path.resolve().parents:
            raise UsageError(f"{path} lies in {SCRATCH}, which the laboratory covers: run it from elsewhere.")
    tried = subprocess.run([*_wrapper(), "true"], capture_output=True, text=True)
    if tried.returncode:
        raise UsageError(
            f"the kernel refuses namespaces ({tried.stderr.strip()}). In a container: docker run --privileged."
        )


def set_up() -> None:
    """Inside, before anything else: temporary files of its own, and a working loopback."""
    for command in (
        ["mount", "-t", "tmpfs", "netlab", str(SCRATCH)],
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(SCRATCH)


def _wrapper() -> list[str]:
    return [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
    ]


class _Signalled(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> NoReturn:
        raise _Signalled(number)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
