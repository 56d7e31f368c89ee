"""Stands in for the training script in tests of the sweep: the same files and exit codes, no training.

FAKE in the environment says, as JSON, what runs do whose name contains a word:
``{"dcd": "crash"}``; so do files ``OUT/../starts`` (a line per start: name and --resume or --overwrite).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from experiments import toml
from gossip.errors import CheckpointError

FRAME = "-" * 74
"""Around what Open MPI says."""


def stop_when_asked(out: Path, obey: bool) -> NoReturn:
    """Until SIGUSR1, with a child in a process group of its own, as mpirun's ranks are."""
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(143) if obey else None)
    if not obey:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
    (out / "child").write_text(str(child.pid))
    while True:
        time.sleep(0.01)


def main() -> None:
    flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
    out, mode = Path(flags.pop("out")), sys.argv[-1]
    with open(out.parent / "starts", "a") as file:
        file.write(f"{out.name} {mode}\n")
    out.mkdir(exist_ok=True)
    (out / "config.toml").write_text(toml.dumps({key: toml.parse_value(v) for key, v in flags.items()}))
    print("as in any run", flush=True)
    behaviours = json.loads(os.environ.get("FAKE", "{}"))
    does = next((what for word, what in behaviours.items() if word in out.name), "finish")
    summary = {"diverged": does == "diverge", "test_accuracy": 50.0, "diverged_step": 7, "diverged_rank": 0}
    summary |= {"train_loss": 1.0}
    if does == "crash":
        sys.exit("something went wrong")
    if does == "fail to resume" and mode == "--resume":
        print("a rank's part is damaged: remove that folder and resume again", flush=True)
        print(f"{FRAME}\nMPI_ABORT was invoked\n\n  Errorcode: 4\n{FRAME}\n\0" * 2, flush=True)
        sys.exit(CheckpointError.exit_code)
    if does in ("obey", "ignore"):
        stop_when_asked(out, does == "obey")
    if does == "wait for the other":
        deadline = time.monotonic() + 60
        while len((out.parent / "starts").read_text().splitlines()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        summary["test_accuracy"] = 100.0 if time.monotonic() < deadline else 0.0
    (out / "summary.json").write_text(json.dumps(summary))
    sys.exit(3 if does == "diverge" else 0)


if __name__ == "__main__":
    main()
