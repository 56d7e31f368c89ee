"""Loss per step of every method, really trained: what a rank does.

The numbers of a run do not depend on the network, nor on overlap: so the methods train once, on an unshaped
network, and the figures put each network's time per step under the same losses.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

import gossip
from experiments.netlab.compute import Real
from experiments.netlab.jobs import Job
from experiments.netlab.methods import METHODS


def task(job: Job) -> None:
    """Train `job.methods`, `options["steps"]` steps each at `options["lr"]`; answers key -> losses."""
    torch.set_num_threads(1)
    world = gossip.world()
    answer: dict[str, Any] = {}
    for method in (METHODS[key] for key in job.methods if METHODS[key].algorithm):
        workload = Real(job.compute, world.rank, factor=1.0, amp=True)
        lr = job.options["lr"]
        optimizer = torch.optim.SGD(workload.model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
        node = gossip.join(
            workload.model,
            optimizer,
            algorithm=str(method.algorithm),
            compressor=method.compressor,
            topology="ring",
        )
        mine = []
        for _ in range(job.options["steps"]):
            optimizer.zero_grad()
            mine.append(workload.forward_backward(workload.model))
            optimizer.step()
        node.finish()
        everyone = world.allgather(mine)
        answer[method.key] = [statistics.fmean(losses) for losses in zip(*everyone, strict=True)]
        job.reply(world.rank, answer)
    world.barrier()
