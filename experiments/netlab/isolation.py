"""A place on this machine where the laboratory can do what it likes, and that ends with it.

`run` starts a command as process 1 of namespaces of its own: processes, network, mounts, host name. Whatever
it makes there (hosts, interfaces, temporary files) nobody else can see or collide with, so any number of
laboratories may run at once. When its process 1 ends, the kernel ends every process inside and takes the rest
down; and process 1 is killed when `run`'s process ends, in whatever way, SIGKILL included. So there is
nothing that could be left over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

SCRATCH = Path("/dev/shm")
"""Temporary files: the laboratory mounts a tmpfs of its own here."""

_MARK = "GOSSIP_NETLAB_INSIDE"


def inside() -> bool:
    """Whether this process is one that `run` has started."""
    return os.environ.get(_MARK) == "1" and os.getpid() == 1


def run(command: Sequence[str]) -> int:
    """Run `command` inside; returns its exit code, 128 + the signal's number if this process got one."""
    process = subprocess.Popen(
        [*wrapper(), *command],
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


def set_up() -> None:
    """Inside, before anything else: temporary files of its own, and a working loopback."""
    for command in (
        ["mount", "-t", "tmpfs", "netlab", str(SCRATCH)],
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(SCRATCH)


def wrapper() -> list[str]:
    """What to put before a command to give it namespaces of its own, which end when its parent does."""
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

    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's
        heard.append(signal.SIGHUP)
    before = {s: signal.signal(s, handle) for s in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
