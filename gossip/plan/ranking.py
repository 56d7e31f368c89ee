"""All combinations of method, graph and codec on one network, fastest first."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import nn

from compressors import Compressor
from gossip import shapes, traffic
from gossip.algorithms import DGC, Algorithm, GradientDropping
from gossip.errors import UsageError
from gossip.fit import bucket_bytes, check_graph
from gossip.flat import FlatModel
from gossip.plan import cost, trips
from gossip.plan.cost import Link, Step
from gossip.spec import make_algorithm, make_codec, make_topology
from gossip.transport.base import mean_bytes
from topologies import Schedule, Topology

ALGORITHMS = ("allreduce", "qsgd", "signsgd", "powersgd", "dgc", "dpsgd", "dcd", "ecd", "choco")
TOPOLOGIES = ("ring", "torus", "hypercube", "exponential", "one-peer", "complete")
COMPRESSORS = ("fp16", "qsgd:bits=8", "qsgd:bits=4", "sign", "topk:ratio=0.01")

ALIKE = 1.02
"""Times whose ratio is smaller may count as the same."""

TIMED_VALUES = 1 << 20
"""Codecs are timed on messages of at most so many values; longer ones take in proportion."""


@dataclass(frozen=True)
class Plan:
    """One combination and what is predicted for it.

    Attributes:
        algorithm, compressor, topology: specs; None for what the method does not use.
        time: of an optimizer step.
        sent: bytes per step of the busiest node, at most.
        spectral_gap: share of the nodes' disagreement that one exchange removes; 1 for an exact mean.
        warnings: what theory says against it.
        notes: what else to know.
    """

    algorithm: str
    compressor: str | None
    topology: str | None
    time: Step
    sent: float
    spectral_gap: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The specs that matter, on one line."""
        return " ".join(
            filter(None, (self.algorithm, self.compressor, self.topology and f"on {self.topology}"))
        )


@dataclass(frozen=True)
class Candidate:
    """A combination, and what its rounds send: all that does not depend on the network. `of` makes it.

    Attributes:
        sizes: values of the buckets.
        rounds: one per bucket, for every round that recurs.
        at_first: bytes that the busiest node sends in the very first round.
    """

    method: Algorithm
    graph: Topology | Schedule
    codec: Compressor
    sizes: tuple[int, ...]
    rounds: tuple[tuple[trips.Round, ...], ...]
    at_first: float

    @classmethod
    def of(
        cls, model: nn.Module, method: Algorithm, graph: Topology | Schedule, codec: Compressor
    ) -> Candidate:
        """`model` may be on the meta device; only its shapes are looked at. Raises UsageError for slices."""
        if method.pieces(graph.size) is not None:
            raise UsageError(
                f"{method.name} is not planned: its slices have owners of their own, which this model of a "
                "network knows nothing of. Simulate it: python -m experiments.p3_simulation --help"
            )
        buckets = cut(model, method)

        def rounds(t: int) -> tuple[trips.Round, ...]:
            return tuple(trips.of_round(method, graph, codec, segments, t) for segments in buckets)

        return cls(
            method=method,
            graph=graph,
            codec=codec,
            sizes=tuple(sum(s.size for s in segments) for segments in buckets),
            rounds=tuple(rounds(t) for t in traffic.recurring(method, graph)),
            at_first=sum(one.sent for one in rounds(1)),
        )

    def step(self, link: Link, compute: float = 0.0, overlap: bool = True, own: float | None = None) -> Step:
        """The mean step in a long run; `own` is by default what the codec takes on this machine's CPU."""
        if own is None:
            own = statistics.fmean(map(self._codec_seconds, self.rounds))
        steps = [
            cost.step(self.method, each, self.sizes, link, compute, own, overlap) for each in self.rounds
        ]
        return Step(*(statistics.fmean(getattr(s, part.name) for s in steps) for part in fields(Step)))

    def _codec_seconds(self, buckets: Sequence[trips.Round]) -> float:
        seconds = 0.0
        for one in buckets:
            if one.codec is not None:
                encode, decode = timed(one.codec, one.values)
                seconds += one.encodes * encode + one.decodes * decode
        return seconds

    def plan(self, link: Link, compute: float = 0.0, overlap: bool = True) -> Plan:
        """Everything that is to be said about it on this network."""
        sent = statistics.fmean(sum(one.sent for one in each) for each in self.rounds)
        on_graph = self.method.uses_graph
        return Plan(
            algorithm=str(self.method),
            compressor=str(self.codec) if self.method.uses_compressor else None,
            topology=self.graph.name if on_graph else None,
            time=self.step(link, compute, overlap),
            sent=sent / self.method.every,
            spectral_gap=self.graph.spectral_gap if on_graph else 1.0,
            warnings=tuple(self.method.check(self.graph, self.codec)),
            notes=tuple(_density(self.method, self.graph.size, sum(self.sizes), sent, self.at_first)),
        )


def rank(
    model: nn.Module,
    nodes: int,
    link: Link,
    compute: float = 0.0,
    algorithms: Sequence[str] = ALGORITHMS,
    topologies: Sequence[str] | None = None,
    compressors: Sequence[str] | None = None,
    overlap: bool = True,
) -> list[Plan]:
    """Every combination that fits, by predicted time per step; those that theory warns about come last.

    Times are compared in steps of 2 %; where they are the same, the graph that mixes faster comes first.

    A method that uses no graph is tried without one. Without `topologies`, those of TOPOLOGIES that exist on
    so many nodes are tried; without `compressors`, COMPRESSORS, of gradient methods their own codec. A graph
    that does not fit a method is left out.

    Raises:
        UsageError: no such method, graph or codec; one that cannot be planned; or nothing is left.
    """
    graphs = _all_graphs(nodes) if topologies is None else [make_topology(spec, nodes) for spec in topologies]
    plans = [
        Candidate.of(model, *combination).plan(link, compute, overlap)
        for combination in _combinations(graphs, algorithms, compressors)
    ]
    if not plans:
        raise UsageError(
            f"{', '.join(algorithms)} needs another graph than {', '.join(g.name for g in graphs)}. "
            "Type for example --topology ring (python -m gossip list topologies)."
        )
    return sorted(plans, key=_order)


def _order(plan: Plan) -> tuple[bool, int, float, float]:
    """Sound ones first, then by time; of two that take the same, the one that mixes faster, or sends less."""
    time = round(math.log(max(plan.time.total, 1e-9), ALIKE))
    return bool(plan.warnings), time, -plan.spectral_gap, plan.sent


def cut(model: nn.Module, method: Algorithm) -> list[trips.Segments]:
    """The tensors of each bucket, as `join` would cut them; `model` itself is left as it is."""
    twin = shapes.of(model, "").module()
    return [bucket.segments for bucket in FlatModel(twin, bucket_bytes(method)).buckets]


@lru_cache(maxsize=256)
def timed(codec: Compressor, size: int) -> tuple[float, float]:
    """Seconds in which one core of this machine encodes, and decodes, `size` values; measured once."""
    n = min(size, TIMED_VALUES)
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    if n < size:
        codec = codec.for_segments((n,))
    encodes, decodes = list[float](), list[float]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for key in range(4):  # the first warms up
            start = time.process_time()
            payload = codec.encode(x, key)
            middle = time.process_time()
            codec.decode(payload, n)
            encodes.append(middle - start)
            decodes.append(time.process_time() - middle)
    finally:
        torch.set_num_threads(threads)
    return min(encodes[1:]) * size / max(1, n), min(decodes[1:]) * size / max(1, n)


def _combinations(
    graphs: Sequence[Topology | Schedule], algorithms: Sequence[str], compressors: Sequence[str] | None
) -> Iterator[tuple[Algorithm, Topology | Schedule, Compressor]]:
    for method in map(make_algorithm, algorithms):
        usual = (method.default_compressor,) if method.kind == "gradient" else COMPRESSORS
        specs = (compressors or usual) if method.uses_compressor else (method.default_compressor,)
        codecs = [make_codec(spec) for spec in specs]
        fitting = [graph for graph in graphs if _fits(method, graph)] if method.uses_graph else graphs[:1]
        yield from itertools.product([method], fitting, codecs)


def _all_graphs(nodes: int) -> list[Topology | Schedule]:
    graphs: dict[tuple[object, ...], Topology | Schedule] = {}
    for spec in TOPOLOGIES:
        with contextlib.suppress(UsageError):  # no such graph of so many nodes
            graph = make_topology(spec, nodes)
            # Of few nodes two families make graphs that cost and mix alike: a torus of 2x4 and a hypercube.
            alike = graph.is_static, graph.is_symmetric, graph.max_degree, round(graph.spectral_gap, 9)
            graphs.setdefault(alike, graph)
    return list(graphs.values())


def _fits(method: Algorithm, graph: Topology | Schedule) -> bool:
    try:
        check_graph(method, graph)
    except UsageError:
        return False
    return True


def _density(method: Algorithm, nodes: int, values: int, sent: float, at_first: float) -> Iterator[str]:
    """What sparse messages add up to when all nodes choose different places, and before the warm-up ends."""
    if not isinstance(method, DGC | GradientDropping) or nodes == 1:
        return
    share = min(1.0, nodes * method.ratio)
    dense = mean_bytes(values, nodes)
    yield (
        f"{method.name}: every node gets all {nodes - 1} messages. At worst they have no place in common, "
        f"and the mean holds {100 * share:.3g} % of the values. A step sends {100 * sent / dense:.3g} % of "
        f"what an exact all-reduce sends, {100 * at_first / dense:.3g} % in the first step."
    )
