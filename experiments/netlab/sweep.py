"""The sweep: methods × bandwidths × latencies, and losses. Runs inside `isolation.run`.

A laboratory and an MPI job per network: every network starts from fresh hosts and connections.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from experiments import models
from experiments.netlab.compute import Compute
from experiments.netlab.measure import EXCHANGES, LEAST_STEPS, MOST_STEPS, WARMUP
from experiments.netlab.methods import Method, with_graph
from experiments.netlab.network import Network
from experiments.netlab.results import Cell, Results
from experiments.netlab.running import PATIENCE, run_job, say, start_seconds
from gossip.plan.cost import Link
from gossip.plan.ranking import Candidate
from gossip.spec import make_topology

PASS_SECONDS = 4.2e-3
"""Forward and backward of ResNet-20 for one image on one core, float32 (67 ms for 16): for the estimate."""


@dataclass(frozen=True)
class Sweep:
    """What is to be measured.

    Attributes:
        hosts, methods, compute: of every network.
        networks: in order. One in the middle also calibrates the planner.
        seconds: about how long one method is measured on one network, where `LEAST_STEPS` do not take longer.
        loss_steps, lr: of the training for the losses; no steps, no losses.
    """

    hosts: int
    networks: tuple[Network, ...]
    methods: tuple[Method, ...]
    compute: Compute
    seconds: float = 3.0
    loss_steps: int = 120
    lr: float = 0.1

    @property
    def calibrating(self) -> Network:
        """The network on which the planner's two exchanges are timed."""
        middle = sorted(self.networks, key=lambda n: (-(n.bandwidth or math.inf), n.latency))
        return middle[len(middle) // 2]

    # -- how long it will take ---------------------------------------------------------------------

    def estimate(self) -> float:
        """Seconds, about; by the planner and the constants above."""
        return sum(map(self.network_seconds, self.networks)) + self.loss_seconds()

    def step_seconds(self) -> float:
        """A step without exchange."""
        if self.compute.seconds is not None:
            return self.compute.seconds * max([1.0, *dict(self.compute.slow).values()])
        return PASS_SECONDS * self.compute.batch_size * max(1.0, self.hosts / (os.cpu_count() or 1))

    def loss_seconds(self) -> float:
        """Of the training for the losses, in bfloat16."""
        if not self.loss_steps:
            return 0.0
        step = PASS_SECONDS / 2 * self.compute.batch_size * max(1.0, self.hosts / (os.cpu_count() or 1))
        ours = sum(method.algorithm is not None for method in self.methods)
        return start_seconds(self.hosts) + ours * self.loss_steps * step

    @cached_property
    def candidates(self) -> list[tuple[Method, Candidate]]:
        """The methods as the planner sees them."""
        graph = make_topology("ring", self.hosts)
        with torch.device("meta"):
            model = models.build(self.compute.model)
        return [(method, Candidate.of(model, *with_graph(method, graph))) for method in self.methods]

    def network_seconds(self, network: Network) -> float:
        """Of one network's job."""
        rate = network.bandwidth or 1e10
        link = Link(rate, network.latency)
        levels = math.ceil(math.log2(self.hosts))  # of the tree by which join tells everybody the parameters
        total = start_seconds(self.hosts) + (WARMUP + MOST_STEPS) * self.step_seconds()
        for method, candidate in self.candidates:
            join = levels * 8 * 4 * sum(candidate.sizes) / rate + 20 * network.latency
            for overlap in (True, False) if method.algorithm else (True,):
                step = candidate.step(link, self.step_seconds(), overlap, own=0.0)
                steps = max(LEAST_STEPS, min(MOST_STEPS, int(self.seconds / step.total)))
                total += join + (WARMUP + steps) * step.total
                if method.gossips and overlap:
                    total += (EXCHANGES + 1) * step.exchange
        return total

    # -- running -----------------------------------------------------------------------------------

    def run(self, results: Results) -> None:
        """Measure everything; what fails is noted, and the rest goes on."""
        for network in self.networks:
            started = time.monotonic()
            answer = run_job(
                results,
                self.hosts,
                network,
                60 + PATIENCE * self.network_seconds(network),
                task="measure",
                compute=self.compute,
                methods=self._keys,
                seconds=self.seconds,
                options={"calibrate": network == self.calibrating},
            )
            if answer is not None:
                where = {"bandwidth": network.bandwidth, "latency": network.latency}
                results.cells += [cell | where for cell in answer["cells"]]
                if "calibration" in answer:
                    results.calibration = answer["calibration"] | where
                results.save()
                say(f"{network}: {time.monotonic() - started:.0f} s; " + ", ".join(_brief(answer["cells"])))
        if self.loss_steps:
            self._train(results)

    def _train(self, results: Results) -> None:
        """The losses; on a network that is as fast as the machine."""
        started = time.monotonic()
        answer = run_job(
            results,
            self.hosts,
            Network(None),
            60 + PATIENCE * self.loss_seconds(),
            task="losses",
            compute=replace(self.compute, seconds=None, slow=()),
            methods=self._keys,
            options={"steps": self.loss_steps, "lr": self.lr},
        )
        results.losses = answer or {}
        results.save()
        say(f"losses: {time.monotonic() - started:.0f} s; {', '.join(results.losses)}")

    @property
    def _keys(self) -> tuple[str, ...]:
        return tuple(method.key for method in self.methods)


def _brief(cells: Sequence[Cell]) -> Iterator[str]:
    """Method and ms per step without and with overlap."""
    for key in dict.fromkeys(cell["method"] for cell in cells):
        mine = {cell["overlap"]: cell["step_ms"] for cell in cells if cell["method"] == key}
        yield f"{key} " + "/".join(f"{mine[o]:.0f}" for o in (False, True) if o in mine)
