"""The sweep: methods × bandwidths × latencies, losses, and the goodput benchmark; inside `isolation.run`.

A laboratory and an MPI job per network: every network starts from fresh hosts and connections. What is
measured is saved after each, so an interrupted sweep keeps what it has.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from experiments import models
from experiments.netlab import goodput
from experiments.netlab.compute import Compute
from experiments.netlab.jobs import Job
from experiments.netlab.lab import Lab
from experiments.netlab.measure import EXCHANGES, LEAST_STEPS, MOST_STEPS, WARMUP
from experiments.netlab.methods import Method, with_graph
from experiments.netlab.network import Network, allowed_congestion, default_congestion
from experiments.netlab.results import Results
from gossip.errors import GossipError
from gossip.plan.cost import Link
from gossip.plan.ranking import Candidate
from gossip.spec import make_topology

PASS_SECONDS = 4.2e-3
"""Forward and backward of ResNet-20 for one image on one core, float32 (67 ms for 16): for the estimate."""

START_SECONDS = 3.0
"""Of a process with torch on one core, and of its share in MPI's start: for the estimate."""

PATIENCE = 6.0
"""A job may take so many times what was estimated, and a minute, before it is ended."""


@dataclass(frozen=True)
class Sweep:
    """What is to be measured.

    Attributes:
        hosts, methods, compute: of every network.
        networks: in order. One in the middle also calibrates the planner.
        seconds: about how long one method is measured on one network, where `LEAST_STEPS` do not take longer.
        loss_steps, loss_batch_size, lr: of the training for the losses; no steps, no losses.
    """

    hosts: int
    networks: tuple[Network, ...]
    methods: tuple[Method, ...]
    compute: Compute
    seconds: float = 3.0
    loss_steps: int = 120
    loss_batch_size: int = 32
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

    def start_seconds(self) -> float:
        """Until all ranks of a job are up."""
        return 2 + START_SECONDS * self.hosts / (os.cpu_count() or 1)

    def step_seconds(self) -> float:
        """A step without exchange."""
        if self.compute.seconds is not None:
            return self.compute.seconds * max([1.0, *dict(self.compute.slow).values()])
        return PASS_SECONDS * self.compute.batch_size * max(1.0, self.hosts / (os.cpu_count() or 1))

    def loss_seconds(self) -> float:
        """Of the training for the losses, in bfloat16."""
        if not self.loss_steps:
            return 0.0
        step = PASS_SECONDS / 2 * self.loss_batch_size * max(1.0, self.hosts / (os.cpu_count() or 1))
        ours = sum(method.algorithm is not None for method in self.methods)
        return self.start_seconds() + ours * self.loss_steps * step

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
        total = self.start_seconds() + 3 * self.step_seconds()
        for method, candidate in self.candidates:
            join = levels * 8 * 4 * sum(candidate.sizes) / rate + 20 * network.latency
            for overlap in (True, False) if method.algorithm else (True,):
                step = candidate.step(link, self.step_seconds(), overlap, lambda *_: (0.0, 0.0))
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
            answer = self._job(results, network, "measure", {"calibrate": network == self.calibrating})
            where = {"bandwidth": network.bandwidth, "latency": network.latency}
            results.cells += [cell | where for cell in answer.get("cells", [])]
            if "calibration" in answer:
                results.calibration = answer["calibration"] | where
            results.save()
            say(f"{network}: {time.monotonic() - started:.0f} s; " + ", ".join(_brief(answer)))
        if self.loss_steps:
            started = time.monotonic()
            batches = replace(
                self, compute=replace(self.compute, batch_size=self.loss_batch_size, seconds=None)
            )
            options = {"steps": self.loss_steps, "lr": self.lr}
            results.losses = batches._job(results, Network(None), "losses", options)
            results.save()
            say(f"losses: {time.monotonic() - started:.0f} s; {', '.join(results.losses)}")

    def _job(self, results: Results, network: Network, task: str, options: Mapping[str, Any]) -> Any:
        """One job on a laboratory of its own; its answer, as far as it came."""
        expected = self.loss_seconds() if task == "losses" else self.network_seconds(network)
        try:
            with Lab(self.hosts, network) as lab:
                job = Job(
                    task=task,
                    answer=lab.folder / "answer.json",
                    compute=self.compute,
                    methods=tuple(method.key for method in self.methods),
                    seconds=self.seconds,
                    options=dict(options),
                )
                try:
                    run_job(lab, job, results, 60 + PATIENCE * expected)
                finally:
                    answer = json.loads(job.answer.read_text()) if job.answer.exists() else {}
        except GossipError as error:
            note_failure(results, f"{task}, {network}", error)
            return locals().get("answer", {})
        return answer


@dataclass(frozen=True)
class Goodput:
    """The goodput benchmark.

    Attributes:
        settings: names, of goodput.SETTINGS.
        congestions: TCP's congestion controls, the machine's own first.
        latency: seconds one way.
        rates: bit/s.
    """

    hosts: int
    settings: tuple[str, ...]
    congestions: tuple[str, ...]
    latency: float
    rates: tuple[float, ...]

    def estimate(self) -> float:
        """Seconds, about."""
        return self.job_seconds() * len(list(self._jobs()))

    def job_seconds(self) -> float:
        """Of one setting's job, about; messages get less than half of the rate at worst."""
        turns = 2 * (goodput.REPEATS + 1)
        ideal = sum(turns * 8 * size / rate for rate in self.rates for size, _ in goodput.cases(rate))
        return 2 + START_SECONDS * self.hosts / (os.cpu_count() or 1) + 1.7 * ideal

    def _jobs(self) -> Iterator[tuple[str, str]]:
        """Congestion control and setting: all with the machine's own, the most telling with the others."""
        own, *others = self.congestions
        yield from ((own, setting) for setting in self.settings)
        yield from itertools.product(others, [s for s in self.settings if s in goodput.QUICK])

    def run(self, results: Results) -> None:
        """Measure; what fails is noted, and the rest goes on."""
        for congestion, setting in self._jobs():
            network = Network(self.rates[0], self.latency, congestion=congestion)
            options = {"rates": self.rates, "setting": setting, "plain": setting == self.settings[0]}
            try:
                with Lab(self.hosts, network) as lab:
                    job = Job("goodput", lab.folder / "answer.json", options=options)
                    try:
                        run_job(
                            lab, job, results, 60 + PATIENCE * self.job_seconds(), goodput.SETTINGS[setting]
                        )
                    finally:
                        rows = json.loads(job.answer.read_text()) if job.answer.exists() else []
                        results.goodput += [row | {"congestion": congestion} for row in rows]
                        results.save()
            except GossipError as error:
                note_failure(results, f"goodput, {setting}, {congestion}", error)
                continue
            shares = ", ".join(
                f"{row['goodput']:.0%} of {row['rate'] / 1e6:g} Mbit/s"
                for row in rows
                if row["setting"] == setting and (row["payload"], row["pieces"]) == (goodput.PAYLOADS[0], 1)
            )
            say(f"goodput, {setting}, {congestion}: {shares}")


def run_job(
    lab: Lab, job: Job, results: Results, timeout: float, settings: Mapping[str, str] | None = None
) -> None:
    """Start `job` on the laboratory's hosts; its output goes to log.txt beside the results."""
    file = lab.folder / "job.json"
    job.write(file)
    log = results.folder / "log.txt"
    with log.open("a", encoding="utf-8") as text:
        text.write(f"\n--- {job.task}, {lab.network} {dict(job.options)} {dict(settings or {})}\n")
    lab.mpirun([sys.executable, "-m", "experiments.netlab.jobs", str(file)], timeout, settings, log)


def note_failure(results: Results, what: str, error: Exception) -> None:
    """Keep in the results that something is missing, and why."""
    results.failed.append(f"{what}: {str(error).splitlines()[0]}")
    results.save()
    say(f"FAILED: {what}: {error}")


def congestions(quick: bool) -> tuple[str, ...]:
    """The machine's own congestion control, and in the full benchmark reno, if hosts may use it."""
    own = default_congestion()
    if quick:
        return (own,)
    return (own, *(name for name in allowed_congestion() if name in ("reno", "cubic", "bbr") and name != own))


def say(text: str) -> None:
    """Progress, at once."""
    print(text, flush=True)


def _brief(answer: Mapping[str, Any]) -> Iterator[str]:
    """Method and ms per step without and with overlap."""
    cells = answer.get("cells", [])
    for key in dict.fromkeys(cell["method"] for cell in cells):
        mine = {cell["overlap"]: cell["step_ms"] for cell in cells if cell["method"] == key}
        yield f"{key} " + "/".join(f"{mine[o]:.0f}" for o in (False, True) if o in mine)
