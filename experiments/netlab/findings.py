"""What the measurements say: Tang et al.'s four findings, whether overlap hides, how good the planner is.

Every judgement is a `Verdict`: held or not, with its numbers. One that lacks a measurement is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from experiments import models
from experiments.netlab.goodput import FRAMEWORK, PLAIN, TARGET
from experiments.netlab.methods import LOCAL, METHODS, PAPER, with_graph
from experiments.netlab.results import Cell, Results
from gossip.plan.cost import RAMP, Exchange, Link
from gossip.plan.ranking import Candidate
from gossip.spec import make_topology
from gossip.units import show_bandwidth, show_duration

EQUAL = 1.15
"""The slowest of equal methods takes at most so many times as long as the fastest."""

WIN = 0.9
"""A method wins if it takes at most this share of the other's time; it gains nothing if it does not."""

HIDDEN = 0.05
"""An exchange is hidden if at most this share of the step waits for it."""

FULL = 0.85
"""Without overlap at least this share of the exchange is waited for."""

LONG = 20.0
"""Exchanges of less ms are not judged by that: the ranks' scheduling weighs as much."""

BUSY = 0.85
"""Where a larger share of the machine's cores is busy, a step is late because of them too."""

TOLERANCE = 0.15
"""How far a prediction may be from the measurement."""

OWN = ("encode_ms", "decode_ms", "mix_ms")
"""What a method itself computes in a step."""

DDP_FACTOR = 2.5
DDP_NETWORK = (20e6, 5e-3)


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it held (None: not measured), and the numbers."""

    claim: str
    held: bool | None
    numbers: str

    @property
    def word(self) -> str:
        return {True: "held", False: "NOT HELD", None: "not measured"}[self.held]


Network = tuple[float, float]
"""Bandwidth, bit/s, and latency, seconds one way."""


def corners(results: Results) -> dict[str, Network]:
    """The best network, the one far away, the slow one, and the one that is both."""
    bandwidths = [b for b, _ in results.networks()]
    latencies = [latency for _, latency in results.networks()]
    fast, slow, near, far = max(bandwidths), min(bandwidths), min(latencies), max(latencies)
    return {"best": (fast, near), "far": (fast, far), "slow": (slow, near), "both": (slow, far)}


def paper(results: Results, overlap: bool) -> Iterator[Verdict]:
    """The four findings of Tang et al. (2018), from the time per step of their four methods."""
    places = corners(results)

    def judge(place: str, claim: str, held: Callable[[dict[str, float]], bool]) -> Verdict:
        network = places[place]
        cells = {key: results.cell(key, overlap, *network) for key in PAPER}
        claim = f"{claim} ({show(network)})"
        if None in cells.values() or list(places.values()).count(network) > 1:
            return Verdict(claim, None, "")  # with one bandwidth or latency there is no good and bad
        ms = {key: float(cell["step_ms"]) for key, cell in cells.items() if cell is not None}
        return Verdict(
            claim, held(ms), ", ".join(f"{METHODS[key].label} {t:.0f} ms" for key, t in ms.items())
        )

    yield judge(
        "best", "Best network: all methods equal", lambda ms: max(ms.values()) <= EQUAL * min(ms.values())
    )
    yield judge(
        "far",
        "High latency: gossip, 32 bit and 8 bit, beats all-reduce",
        lambda ms: max(ms["dpsgd"], ms["dcd8"], ms["ecd8"]) <= WIN * ms["allreduce"],
    )
    yield judge(
        "slow",
        "Low bandwidth: 8 bit wins, 32-bit gossip gains nothing",
        lambda ms: (
            max(ms["dcd8"], ms["ecd8"]) <= WIN * min(ms["allreduce"], ms["dpsgd"])
            and ms["dpsgd"] > WIN * ms["allreduce"]
        ),
    )
    yield judge(
        "both",
        "Both bad: only 8-bit gossip wins",
        lambda ms: (
            max(ms["dcd8"], ms["ecd8"]) <= WIN * ms["allreduce"] and ms["dpsgd"] > WIN * ms["allreduce"]
        ),
    )


@dataclass(frozen=True)
class Hiding:
    """One method on one network, in ms per step.

    Attributes:
        alone: the exchange by itself, nothing else going on.
        compute: forward and backward.
        exposed, step: with overlap.
        exposed_alone: without overlap.
        undisturbed: what the step would take if nothing were to be sent: a step without exchange, and what
            the method itself computes (encode, decode, mix).
        busy: the share of the machine's cores, with overlap.
    """

    method: str
    network: Network
    alone: float
    compute: float
    exposed: float
    step: float
    exposed_alone: float
    undisturbed: float
    busy: float

    @property
    def fits(self) -> bool:
        """Whether the exchange is shorter than what is to hide it."""
        return self.alone < self.compute

    @property
    def share(self) -> float:
        """Of the step that waits, with overlap."""
        return self.exposed / self.step

    @property
    def share_alone(self) -> float:
        """Of the exchange that is waited for, without overlap."""
        return self.exposed_alone / self.alone

    @property
    def longer(self) -> float:
        """By which share the step is longer with overlap than undisturbed."""
        return self.step / self.undisturbed - 1

    @property
    def where(self) -> str:
        """Method and network in words."""
        return f"{METHODS[self.method].label}, {show(self.network)}"


def hidings(results: Results) -> Iterator[Hiding]:
    """Every method whose exchange is to be hidden, on every network; none where stragglers are waited for."""
    if results.about.get("slow"):
        return
    for network in results.networks():
        local = results.cell(LOCAL.key, True, *network)
        fixed = results.about["compute_seconds"]
        for key, method in METHODS.items():
            on, off = (results.cell(key, overlap, *network) for overlap in (True, False))
            if method.gossips and on and off and local:
                compute = 1e3 * fixed if fixed is not None else local["step_ms"]
                waits = on["exposed_wait_ms"], on["step_ms"], off["exposed_wait_ms"]
                undisturbed = local["step_ms"] + sum(on[part] for part in OWN)
                yield Hiding(key, network, on["exchange_ms"], compute, *waits, undisturbed, on["cores_busy"])


def overlap(results: Results) -> Iterator[Verdict]:
    """That overlap hides what can be hidden, and that without it nothing is."""
    found = list(hidings(results))
    fitting = [h for h in found if h.fits]
    yield _all_at_most(
        f"With overlap at most {100 * HIDDEN:.0f} % of the step waits, wherever the exchange alone is "
        "shorter than forward and backward",
        fitting,
        lambda h: h.share,
    )
    yield _all_at_most(
        f"There, the step is at most {100 * HIDDEN:.0f} % longer than without exchange (plus encode, decode "
        "and mix): nothing is late either",
        fitting,
        lambda h: h.longer,
    )
    yield _all_at_most(
        f"The same, where at most {100 * BUSY:.0f} % of the machine's cores are busy",
        [h for h in fitting if h.busy <= BUSY],
        lambda h: h.longer,
    )
    found = [h for h in found if h.alone >= LONG]
    claim = (
        f"Without overlap the step waits for the whole exchange (at least {100 * FULL:.0f} % of it; "
        f"exchanges of {LONG:.0f} ms and more)"
    )
    if not found:
        yield Verdict(claim, None, "")
    else:
        least = min(found, key=lambda h: h.share_alone)
        count = f"{sum(h.share_alone >= FULL for h in found)} of {len(found)}"
        numbers = f"{count}; least {100 * least.share_alone:.0f} %: {least.where}"
        yield Verdict(claim, least.share_alone >= FULL, numbers)


def _all_at_most(claim: str, found: Sequence[Hiding], share: Callable[[Hiding], float]) -> Verdict:
    if not found:
        return Verdict(claim, None, "")
    worst = max(found, key=share)
    count = f"{sum(share(h) <= HIDDEN for h in found)} of {len(found)}"
    return Verdict(claim, share(worst) <= HIDDEN, f"{count}; worst {100 * share(worst):.1f} %: {worst.where}")


def against_ddp(results: Results) -> Iterator[Verdict]:
    """DCD 8 bit against torch's DDP on the network that the project has promised this for."""
    ours, ddp = (results.cell(key, True, *DDP_NETWORK) for key in ("dcd8", "ddp"))
    claim = f"DCD, 8 bit, takes at most 1/{DDP_FACTOR:g} of torch DDP's time ({show(DDP_NETWORK)})"
    if ours is None or ddp is None:
        yield Verdict(claim, None, "")
        return
    ratio = ddp["step_ms"] / ours["step_ms"]
    numbers = f"{ours['step_ms']:.0f} ms against {ddp['step_ms']:.0f} ms: 1/{ratio:.2f}"
    yield Verdict(claim, ratio >= DDP_FACTOR, numbers)


@dataclass(frozen=True)
class Prediction:
    """The planner's time per step beside the measured one, in ms; `busy`: see `_busy`."""

    method: str
    overlap: bool
    network: Network
    predicted: float
    measured: float
    busy: float

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted / self.measured - 1


def predictions(results: Results) -> Iterator[Prediction]:
    """Every method of ours on every network, except for the one that gave the planner its numbers.

    Those are: two exchanges, timed by themselves, and what the method itself computes (encode, decode, mix).
    Everywhere it is told how long a step without exchange takes, as a user would by `--compute`.
    """
    facts = results.calibration
    if not facts:
        return
    exchanges = (Exchange(**facts[name]) for name in ("small", "large"))
    home = facts["bandwidth"], facts["latency"]
    fitted = replace(Link.fit(*home, *exchanges), ramp=RAMP.get(results.about["congestion"], 0.0))
    graph = make_topology("ring", results.about["hosts"])
    with torch.device("meta"):
        model = models.build(results.about["model"])
    for key, method in METHODS.items():
        at_home = results.cell(key, False, *home)
        if method.algorithm is None or at_home is None:
            continue
        candidate = Candidate.of(model, *with_graph(method, graph))
        own = sum(at_home[part] for part in OWN) / 1e3
        for c in results.cells:
            network = c["bandwidth"], c["latency"]
            local = results.cell(LOCAL.key, True, *network)
            if c["method"] == key and network != home and local is not None:
                slowest = max(local["step_ms_by_host"]) / 1e3  # for which all others wait
                step = candidate.step(fitted.at(*network), slowest, c["overlap"], own)
                yield Prediction(key, c["overlap"], network, 1e3 * step.total, c["step_ms"], _busy(c, local))


def _busy(cell: Cell, local: Cell) -> float:
    """The share of the machine's cores that is busy while hosts exchange: where that goes on beside computing
    or is short, of the whole step; else of what a step takes beyond one without exchange."""
    more = cell["step_ms"] - local["step_ms"]
    if cell["overlap"] or more < LONG:
        return float(cell["cores_busy"])
    return float((cell["cores_busy"] * cell["step_ms"] - local["cores_busy"] * local["step_ms"]) / more)


def planner(results: Results) -> Iterator[Verdict]:
    """Whether the planner's predictions hold; its model has links, but no cores."""
    found = list(predictions(results))
    yield _predicted(f"The planner predicts every step within {100 * TOLERANCE:.0f} %", found)
    yield _predicted(
        f"The same, where at most {100 * BUSY:.0f} % of the machine's cores are busy during the exchange",
        [p for p in found if p.busy <= BUSY],
    )


def _predicted(claim: str, found: Sequence[Prediction]) -> Verdict:
    if not found:
        return Verdict(claim, None, "")
    worst = max(found, key=lambda p: abs(p.error))
    within = sum(abs(p.error) <= TOLERANCE for p in found)
    return Verdict(
        claim,
        within == len(found),
        f"{within} of {len(found)}; worst {100 * worst.error:+.0f} %: {METHODS[worst.method].label}, "
        f"{'with' if worst.overlap else 'without'} overlap, {show(worst.network)}",
    )


def goodput(results: Results) -> Iterator[Verdict]:
    """Whether the framework's settings of MPI get `TARGET` of a rate, with the first congestion control."""
    congestion = results.goodput[0]["congestion"]
    for rate in dict.fromkeys(row["rate"] for row in results.goodput):
        shares = {
            (row["setting"], row["payload"]): row["goodput"]
            for row in results.goodput
            if (row["congestion"], row["rate"], row["pieces"]) == (congestion, rate, 1)
        }
        ours, plain = (
            {size: share for (setting, size), share in shares.items() if setting == name}
            for name in (FRAMEWORK, PLAIN)
        )
        claim = f"Exchange both ways gets {100 * TARGET:.0f} % of {show_bandwidth(rate)} ({congestion})"
        numbers = "; ".join(
            f"{size / 1e6:.2f} MB: {100 * share:.0f} %, plain sockets {100 * plain[size]:.0f} %"
            for size, share in ours.items()
            if size in plain
        )
        yield Verdict(claim, min(ours.values()) >= TARGET if ours else None, numbers)


def show(network: Network) -> str:
    """A network in words."""
    return f"{show_bandwidth(network[0])}, {show_duration(network[1])}"
