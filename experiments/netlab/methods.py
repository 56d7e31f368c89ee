"""The methods that are compared on the shaped networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compressors import Compressor
from gossip.algorithms import Algorithm
from gossip.errors import UsageError
from gossip.spec import make_algorithm, make_codec
from gossip.suggest import nearest
from topologies import Schedule, Topology


@dataclass(frozen=True)
class Method:
    """One line of the figures.

    Attributes:
        key: what is typed, and written in the results.
        label: what readers see.
        algorithm, compressor: as given to `gossip.join`; no algorithm for what is not ours.
        gossips: whether it talks to neighbours only; then forward and backward are to hide its exchange.
    """

    key: str
    label: str
    algorithm: str | None
    compressor: str | None = None
    gossips: bool = False


METHODS = {
    method.key: method
    for method in (
        Method("allreduce", "all-reduce, 32 bit", "allreduce"),
        Method("dpsgd", "D-PSGD, 32 bit", "dpsgd", gossips=True),
        Method("dcd8", "DCD, 8 bit", "dcd", "qsgd:bits=8", gossips=True),
        Method("ecd8", "ECD, 8 bit", "ecd", "qsgd:bits=8", gossips=True),
        Method("choco4", "CHOCO, 4 bit", "choco", "qsgd:bits=4", gossips=True),
        Method("choco1", "CHOCO, sign", "choco", "sign", gossips=True),
        # The share that is sent after the warm-up, from the first step on.
        Method("dgc", "DGC, 0.1 %", "dgc:ratio=0.001,warmup_steps=0"),
        Method("ddp", "torch DDP, gloo", None),
    )
}

LOCAL = Method("local", "no exchange", "local")
"""Measured on every network beside the others: what a step takes without a network."""

PAPER = ("allreduce", "dpsgd", "dcd8", "ecd8")
"""The four lines of Tang et al.'s figures."""


def choose(keys: Sequence[str]) -> tuple[Method, ...]:
    """The methods of these keys. Raises UsageError for one that does not exist."""
    for key in keys:
        if key not in METHODS:
            near = nearest(key, METHODS)
            hint = f" Did you mean {near}?" if near else ""
            raise UsageError(f"--methods {key}: there is {', '.join(METHODS)}.{hint}")
    return tuple(METHODS[key] for key in dict.fromkeys(keys))


def with_graph(
    method: Method, graph: Topology | Schedule
) -> tuple[Algorithm, Topology | Schedule, Compressor]:
    """The objects of a method of ours on a graph; of torch's DDP, those of the all-reduce that it does."""
    algorithm = make_algorithm(method.algorithm or "allreduce")
    return algorithm, graph, make_codec(method.compressor or algorithm.default_compressor)
