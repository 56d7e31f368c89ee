"""Train a tiny model by every method and print, as JSON, what every rank ends with.

    mpirun -n 4 python -m tests.mpi.method_laws

The same `results` run on virtual nodes. Point-to-point methods must end with the same bits (a hash of the
parameters), methods that take means with nearly the same values (the parameters themselves).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings

import gossip
from gossip.algorithms import ALGORITHMS
from tests.quadratics import loop, start

STEPS = 8
LATE = float(os.environ.get("LATE", "0"))
"""Seconds that rank 1 rests before its first step with some of the methods."""

RESTS = ("dcd", "allreduce")
CODEC = {"ecd": "grid", "choco": "topk:ratio=0.25"}
POINT_TO_POINT = (
    *("local", "dpsgd", "naive", "dcd", "ecd", "choco", "deepsqueeze", "plump"),
    *("slim:alpha=0.4,beta=0.2,q=3", "slim:alpha=0.4,beta=0.2,q=3,residual=keep,keys=seed,every=2"),
    *("qsgd:gather=all", "signsgd:gather=scatter"),
    *("p3:slice=8,in_flight=1", "p3:slice=layer,order=fifo"),
)
MEANS = ("allreduce", "powersgd", "dgc:ratio=0.1,warmup_steps=4", "gradient-dropping:ratio=0.1")
SPECS = (*POINT_TO_POINT, "dpsgd:order=atc", "dcd:every=3", "choco:every=3", *MEANS)


def final_parameters(spec: str) -> list[float]:
    """This rank's parameters after `STEPS` steps, flat."""
    name = spec.partition(":")[0]
    codec = CODEC.get(name, "qsgd:bits=8") if ALGORITHMS[name].uses_compressor else "identity"
    model, optimizer = start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = gossip.join(model, optimizer, algorithm=spec, compressor=codec)
    if node.rank == 1 and spec in RESTS:
        time.sleep(LATE)
    loop(node, model, optimizer, range(STEPS))
    node.finish()
    values: list[float] = model.flat().tolist()
    return values


def results() -> dict[str, object]:
    """By method: this rank's hash, or its parameters where only tolerance can be asked for."""
    found: dict[str, object] = {}
    for spec in SPECS:
        values = final_parameters(spec)
        found[spec] = values if spec in MEANS else hashlib.sha256(json.dumps(values).encode()).hexdigest()
    return found


if __name__ == "__main__":
    everyone = gossip.world().allgather(results())
    if gossip.world().rank == 0:
        print(json.dumps(everyone), flush=True)
