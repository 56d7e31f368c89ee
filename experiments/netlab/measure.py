"""Time per step of every method on the network of this job: what a rank does."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossip
from experiments.netlab.compute import Workload
from experiments.netlab.jobs import Job
from experiments.netlab.methods import LOCAL, METHODS, Method
from experiments.netlab.network import DEVICE, peers
from experiments.netlab.results import Cell
from gossip.plan import link
from gossip.transport.base import Transport

WARMUP = 2
LEAST_STEPS, MOST_STEPS = 3, 20
EXCHANGES = 2
TIMEOUT = 600.0
PORT = 29500  # of torch's store; the host has a network of its own

PARTS = ("exposed_wait_ms", "encode_ms", "decode_ms", "mix_ms")


def task(job: Job) -> None:
    """Measure `job.methods` with overlap and without; with `calibrate` also what the planner needs."""
    torch.set_num_threads(1)
    world = gossip.world()
    answer: dict[str, Any] = {"cells": []}
    if job.options.get("calibrate"):
        small, large = link.measure(world)
        answer["calibration"] = {"small": vars(small), "large": vars(large)}
    for method in (LOCAL, *(METHODS[key] for key in job.methods)):
        for overlap in (True, False) if method is not LOCAL and method.algorithm else (True,):
            cell = _measure(world, job, method, overlap)
            answer["cells"].append({"method": method.key, "overlap": overlap, **cell})
            job.reply(world.rank, answer)
    world.barrier()


def _measure(world: Transport, job: Job, method: Method, overlap: bool) -> Cell:
    """One method's step, as means over the ranks of medians over the steps; bytes are per rank and step."""
    workload = job.compute.workload(world.rank)
    joined = _joined(workload, method, overlap) if method.algorithm else _ddp(world, workload)
    with joined as (model, optimizer, node):

        def step() -> float:
            start = time.perf_counter()
            optimizer.zero_grad()
            workload.forward_backward(model)
            optimizer.step()
            return time.perf_counter() - start

        world.barrier()
        wire = _wire_bytes()
        for _ in range(WARMUP):
            last = step()
        steps = _clamp(int(job.seconds / max(world.allgather(last))))
        if node is not None:
            node.stats.take()
        world.barrier()
        cores = _core_time()
        times = [step() for _ in range(steps)]
        busy, idle = (after - before for after, before in zip(_core_time(), cores, strict=True))
        mine: dict[str, Any] = {"step_ms": 1e3 * statistics.median(times)}
        mine["cores_busy"] = busy / max(busy + idle, 1)
        if node is not None:
            taken = node.stats.take()
            mine |= {part: statistics.median(taken[part]) for part in PARTS}
            mine["bytes_sent"] = taken["bytes_sent"] / steps
            mine["messages_sent"] = taken["messages_sent"] / steps
            node.wait()
        world.barrier()  # from here on nothing is on its way, as before the first step
        mine["wire_bytes"] = (_wire_bytes() - wire) / (WARMUP + steps)
        cell = _mean(world.allgather(mine)) | {"steps": steps, "exchange_ms": None}
        if node is not None and method.gossips and overlap:
            neighbors = link.ring_neighbors(world)
            size = round(cell["bytes_sent"] / len(neighbors))
            cell["exchange_ms"] = 1e3 * link.time_exchange(world, neighbors, size, EXCHANGES)
    return cell


def _clamp(steps: int) -> int:
    return max(LEAST_STEPS, min(MOST_STEPS, steps))


def _mean(rows: list[dict[str, float]]) -> Cell:
    cell = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    cell["step_ms_by_host"] = [row["step_ms"] for row in rows]  # type: ignore[assignment]
    return cell


Joined = tuple[nn.Module, torch.optim.Optimizer, gossip.Session | None]


@contextlib.contextmanager
def _joined(workload: Workload, method: Method, overlap: bool) -> Iterator[Joined]:
    """The workload's model as one node of a gossip run."""
    assert method.algorithm is not None
    optimizer = _optimizer(workload.model)
    node = gossip.join(
        workload.model,
        optimizer,
        algorithm=method.algorithm,
        compressor=method.compressor,
        topology="ring",
        overlap=overlap,
        timeout=TIMEOUT,
    )
    yield workload.model, optimizer, node
    node.finish()


@contextlib.contextmanager
def _ddp(world: Transport, workload: Workload) -> Iterator[Joined]:
    """The workload's model in torch's DDP over gloo, on the same network."""
    os.environ |= {
        "GLOO_SOCKET_IFNAME": DEVICE,
        "MASTER_ADDR": peers(world)[0],
        "MASTER_PORT": str(PORT),
    }
    torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
    model = DistributedDataParallel(workload.model)
    yield model, _optimizer(model), None
    world.barrier()
    torch.distributed.destroy_process_group()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def _wire_bytes() -> int:
    """Bytes that this host has sent on the shaped network, with a header for each frame that it was given."""
    with open("/proc/self/net/dev", encoding="ascii") as devices:
        for line in devices:
            name, _, counters = line.partition(":")
            if name.strip() == DEVICE:
                return int(counters.split()[8])
    return 0


def _core_time() -> tuple[int, int]:
    """How long the machine's cores have been busy (or taken by other machines), and idle, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, *others = map(int, file.readline().split()[1:9])
    return user + nice + system + sum(others), idle + iowait
