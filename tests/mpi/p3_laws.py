"""P3 between processes: the same numbers however it is driven, and nobody is left waiting.

    mpirun -n 4 python -m tests.mpi.p3_laws

Prints, as JSON, by rank and way of running: a hash of the parameters at the end. The last session is not
finished, so that leaving has to serve the others too.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
import torch.nn.functional as F

import gossip
from gossip.session import Session
from tests.training import Net, batches, flat, sgd

STEPS = 4
WAYS: dict[str, dict[str, Any]] = {
    "hooks": {"algorithm": "p3:slice=80"},
    "thread": {"algorithm": "p3:slice=80", "progress": "thread"},
    "unfinished": {"algorithm": "p3:slice=80,order=fifo,in_flight=1"},
}


def train(**options: Any) -> tuple[Net, Session]:
    """Now and then rank 0 waits in a collective while the others need what it has to send on."""
    torch.manual_seed(gossip.world().rank)
    model = Net()
    optimizer = sgd(model)
    node = gossip.join(model, optimizer, **options)
    for k, (x, y) in enumerate(batches(node.rank, STEPS)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if k % 2:
            node.world.barrier() if node.rank == 0 else model(batches(0, 1)[0][0])
            if node.rank != 0:
                node.world.barrier()
    return model, node


def results() -> dict[str, str]:
    """By way of running: this rank's hash."""
    found = {}
    for way, options in WAYS.items():
        model, node = train(**options)
        node.finish() if way != "unfinished" else node.wait()
        found[way] = hashlib.sha256(flat(model).numpy().tobytes()).hexdigest()
    return found


if __name__ == "__main__":
    everyone = gossip.world().allgather(results())
    if gossip.world().rank == 0:
        print(json.dumps(everyone), flush=True)
    forgotten = train(**WAYS["unfinished"])
