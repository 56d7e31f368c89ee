"""What the papers say, and whether finished runs agree.

Accuracy is that of the averaged model after the last step, mean over seeds; a *gap* is all-reduce's minus the
method's, on as many nodes. The bounds below were fixed before anything was run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import topologies
from experiments.curves import Group, Spread, group
from experiments.runs import Run
from gossip.algorithms import theory
from gossip.errors import UsageError
from topologies import Topology

MATCHES_WITHIN = 2.0
"""A method converges like all-reduce if its gap is at most so many points …"""

MUCH_WORSE_FROM = 5.0
"""… and much slower if it is at least so many."""

STUCK_BELOW = 20.0
"""A method does not converge if most seeds diverge, or the accuracy is below twice that of guessing (%)."""

CODECS = {
    "qsgd:bits=8,norm=max,block=512": (8, "max"),
    "qsgd:bits=4,norm=max,block=512": (4, "max"),
    "per-tensor:(qsgd:bits=8,norm=l2,block=tensor)": (8, "l2"),
    "per-tensor:(qsgd:bits=4,norm=l2,block=tensor)": (4, "l2"),
}
"""The compressors of findings.toml: bits and norm. ``max``: per block of 512; ``l2``: per tensor."""

NORMS = {"max": "max norm, block 512", "l2": "l2 norm, per tensor"}
NODES = (8, 16)

Behaviour = Literal["matches", "worse", "much worse", "fails", "missing"]


@dataclass(frozen=True)
class Statement:
    """`expects` of `algorithm` with messages of `bits` bits (32: exact), as `source` says."""

    text: str
    source: str
    algorithm: str
    bits: int
    expects: Behaviour


TANG = "Tang et al. 2018"
KOLOSKOVA = "Koloskova et al. 2020, Table 1"

STATEMENTS = (
    Statement("D-PSGD converges like all-reduce", "Lian et al. 2017", "dpsgd", 32, "matches"),
    Statement("naive gossip of 8-bit models does not converge", TANG, "naive", 8, "fails"),
    Statement("naive gossip of 4-bit models does not converge", TANG, "naive", 4, "fails"),
    Statement("DCD with 8 bits converges like all-reduce", TANG, "dcd", 8, "matches"),
    Statement("ECD with 8 bits converges like all-reduce", TANG, "ecd", 8, "matches"),
    Statement("DCD with 4 bits converges much slower", TANG, "dcd", 4, "much worse"),
    Statement("ECD with 4 bits diverges", TANG, "ecd", 4, "fails"),
    Statement("DCD with 8 bits is as good (92.36 % of 92.64 %)", KOLOSKOVA, "dcd", 8, "matches"),
    Statement("ECD with 8 bits is much worse (59.11 %)", KOLOSKOVA, "ecd", 8, "much worse"),
    Statement("DCD with 4 bits is lost (23.56 %)", KOLOSKOVA, "dcd", 4, "fails"),
    Statement("ECD with 4 bits diverges", KOLOSKOVA, "ecd", 4, "fails"),
    Statement("CHOCO with 8 bits is as good (92.30 %)", KOLOSKOVA, "choco", 8, "matches"),
    Statement("CHOCO with 4 bits is as good (91.92 %)", KOLOSKOVA, "choco", 4, "matches"),
)


@dataclass(frozen=True, order=True)
class Cell:
    """A place in the grid; `norm` is ``""`` and `bits` 32 for exact methods."""

    nodes: int
    algorithm: str
    bits: int = 32
    norm: str = ""


@dataclass(frozen=True)
class Findings:
    """All runs of the grid, by cell."""

    groups: Mapping[Cell, Group]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Findings:
        """Raises `UsageError`: a run that is not of findings.toml."""
        groups: dict[Cell, Group] = {}
        for each in group(runs):
            config = each.runs[0].config
            bits, norm = 32, ""
            if "compressor" in config:
                if config["compressor"] not in CODECS:
                    raise UsageError(f"{each.runs[0].path} is no run of experiments/findings.toml")
                bits, norm = CODECS[config["compressor"]]
            cell = Cell(config["nodes"], config["algorithm"], bits, norm)
            if cell in groups:
                theirs = groups[cell].runs[0].path
                raise UsageError(f"{theirs} and {each.runs[0].path} differ in more than the grid's settings")
            groups[cell] = each
        return cls(groups)

    def accuracy(self, cell: Cell) -> Spread | None:
        return self._spread(cell, "test_accuracy")

    def train_loss(self, cell: Cell) -> Spread | None:
        return self._spread(cell, "train_loss")

    def error(self, cell: Cell) -> Spread | None:
        """The measured ‖v − C(v)‖/‖v‖ of the messages; diverged runs, up to there, count too."""
        runs = self.groups[cell].runs if cell in self.groups else ()
        errors = [(run.summary or {}).get("compression_error") for run in runs]
        return Spread.of([error for error in errors if error is not None and math.isfinite(error)])

    def gap(self, cell: Cell) -> Spread | None:
        """All-reduce's accuracy minus that of `cell`, in points; `sd` is that of the difference."""
        own, reference = self.accuracy(cell), self.accuracy(Cell(cell.nodes, "allreduce"))
        return reference.minus(own) if own and reference and cell.algorithm != "allreduce" else None

    def behaviour(self, cell: Cell) -> Behaviour:
        if cell not in self.groups or not any(run.summary for run in self.groups[cell].runs):
            return "missing"
        each, accuracy, gap = self.groups[cell], self.accuracy(cell), self.gap(cell)
        if 2 * len(each.diverged) > len(each.runs) or (accuracy and accuracy.mean < STUCK_BELOW):
            return "fails"
        if gap is None:
            return "missing"
        if gap.mean <= MATCHES_WITHIN:
            return "matches"
        return "much worse" if gap.mean >= MUCH_WORSE_FROM else "worse"

    def explanation(self, cell: Cell) -> str:
        """What the measured compression error says about `cell`."""
        error = self.error(cell)
        if error is None:
            return self._of_the_graph(cell)
        a, rounds = error.mean, self._rounds(cell)
        lost = f"messages lose α = {a:.3g} of their norm"
        if cell.algorithm == "dcd":
            bound = dcd_bound(cell.nodes)
            return f"{lost}, {a / bound:.3g} times (1 − ρ)/(2μ) = {bound:.3g}, below which DCD converges"
        if cell.algorithm == "ecd":
            off = 3 * a * math.sqrt(rounds)
            return f"{lost}: after {rounds} rounds the estimates are off by 3α√t = {off:.2g} steps' lengths"
        if cell.algorithm == "choco":
            omega = a**2
            kept = 1 - omega if omega <= theory.SMALL_NOISE else 1 / (1 + omega)
            return f"{lost}, so a round brings the estimates closer by δ = {kept:.2g} of the squared distance"
        return f"{lost}, of the whole parameters, anew in every round, and it is never made up for"

    def _of_the_graph(self, cell: Cell) -> str:
        distance = self._spread(cell, "consensus_distance")
        shown = f"; consensus distance at the end {distance.mean:.2g}" if distance else ""
        return f"exact messages: what is lost is lost to the ring's slow mixing{shown}"

    def _rounds(self, cell: Cell) -> int:
        return max(int((run.summary or {}).get("steps", 0)) for run in self.groups[cell].runs)

    def _spread(self, cell: Cell, key: str) -> Spread | None:
        return self.groups[cell].spread(key) if cell in self.groups else None


def dcd_bound(nodes: int) -> float:
    """The error of messages below which DCD converges on a ring, in theory; it may above, too."""
    ring = topologies.build("ring", nodes)
    assert isinstance(ring, Topology)
    return theory.dcd_threshold(ring)


@dataclass(frozen=True)
class Verdict:
    """How `statement` fares in one place; `held` is None where runs are missing."""

    statement: Statement
    cell: Cell
    behaviour: Behaviour

    @property
    def held(self) -> bool | None:
        return None if self.behaviour == "missing" else self.behaviour == self.statement.expects


def judge(findings: Findings) -> list[Verdict]:
    """Every statement on 8 and 16 nodes, and with both codecs where it is about compression."""
    verdicts = []
    for statement in STATEMENTS:
        for nodes in NODES:
            for norm in NORMS if statement.bits < 32 else ("",):
                cell = Cell(nodes, statement.algorithm, statement.bits, norm)
                verdicts.append(Verdict(statement, cell, findings.behaviour(cell)))
    return verdicts
