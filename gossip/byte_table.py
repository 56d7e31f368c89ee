"""Bytes per step of models and methods from the models' shapes alone: ``python -m gossip bytes``.

Two sizes stand side by side. *message* is one node's message by the law of the method's paper; dense size /
message is the *paper ratio*. *sent* is what a node hands to the network in an optimizer step, as the
transport counts it in training, a message to several nodes several times; all-reduce's bytes / sent is the
*wire ratio*.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from gossip import shapes, traffic
from gossip.cli import positive_int
from gossip.errors import UsageError
from gossip.fit import bucket_bytes, check_graph
from gossip.flat import FlatModel
from gossip.shapes import Shapes
from gossip.spec import make_algorithm, make_codec, make_topology
from gossip.transport.base import mean_bytes

MB = 2**20

COLUMNS = ("model", "method", "dense, MB", "message, MB", "paper ratio", "sent, MB", "wire ratio")
TEXTS = 2
"""So many columns hold text, the others numbers."""

DGC_LEAST = 270
"""The smallest ratio in DGC's abstract."""


@dataclass(frozen=True)
class Row:
    """One model and method; all sizes in bytes.

    Attributes:
        algorithm, compressor, topology: as specs; no compressor or topology where the method uses none.
        dense_bytes: 4 per value.
        message_bytes: one node's message by the paper's `law`.
        sent_bytes: per node and step, the mean over nodes; `busiest_sent_bytes` of the node with the most.
        steps: sizes sent are means over so many first steps; None for a long run, after any warm-up.
        exact: False where a message's length depends on the data; then the two are upper bounds.
        allreduce_bytes: what an exact all-reduce of all gradients would send in place of `sent_bytes`.
    """

    model: str
    values: int
    algorithm: str
    compressor: str | None
    topology: str | None
    nodes: int
    steps: int | None
    dense_bytes: int
    message_bytes: float
    law: str
    sent_bytes: float
    busiest_sent_bytes: float
    exact: bool
    allreduce_bytes: int

    @property
    def paper_ratio(self) -> float | None:
        """Dense size / message; None without messages."""
        return self.dense_bytes / self.message_bytes if self.message_bytes else None

    @property
    def wire_ratio(self) -> float | None:
        """All-reduce's bytes / sent; None where nothing is sent."""
        return self.allreduce_bytes / self.sent_bytes if self.sent_bytes else None

    @property
    def method(self) -> str:
        """The specs that matter, in one word."""
        return " ".join(filter(None, [self.algorithm, self.compressor]))


def row(
    model: Shapes,
    algorithm: str,
    compressor: str | None = None,
    topology: str = "ring",
    nodes: int = 4,
    bucket_mb: float | None = None,
    steps: int | None = None,
) -> Row:
    """Count one model and method, as `gossip.join` with these arguments would send it.

    Raises:
        UsageError: something does not fit, as in `join`.
    """
    method, graph = make_algorithm(algorithm), make_topology(topology, nodes)
    codec = make_codec(method.default_compressor if compressor is None else compressor)
    check_graph(method, graph)
    buckets = FlatModel(model.module(), bucket_bytes(method, bucket_mb), method.pieces(nodes)).buckets
    sent = traffic.per_step(method, graph, codec, [bucket.segments for bucket in buckets], steps)
    paper = method.paper_size(model.shapes, codec)
    return Row(
        model=model.name,
        values=model.size,
        algorithm=str(method),
        compressor=str(codec) if method.uses_compressor else None,
        topology=topology if method.uses_graph else None,
        nodes=graph.size,
        steps=steps,
        dense_bytes=4 * model.size,
        message_bytes=paper.bytes,
        law=paper.law,
        sent_bytes=sent.mean,
        busiest_sent_bytes=sent.most,
        exact=sent.exact,
        allreduce_bytes=mean_bytes(model.size, graph.size),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, and below it what the columns mean."""
    head, *body = [COLUMNS, *(tuple(_cells(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    rule = ["-" * width if i < TEXTS else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i < TEXTS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    return "\n".join([*map(line, (head, rule, *body)), "", *_legend(rows)])


def _cells(row: Row) -> Iterator[str]:
    most, least = ("", "") if row.exact else ("≤ ", "≥ ")
    yield row.model
    yield row.method
    yield f"{row.dense_bytes / MB:.2f}"
    yield f"{row.message_bytes / MB:.4f}"
    yield "–" if row.paper_ratio is None else f"{row.paper_ratio:.1f}"
    yield f"{most}{row.sent_bytes / MB:.4f}"
    yield "–" if row.wire_ratio is None else f"{least}{row.wire_ratio:.1f}"


def _legend(rows: Sequence[Row]) -> Iterator[str]:
    graphs = [row.topology for row in rows if row.topology]
    nodes = "1 node" if rows[0].nodes == 1 else f"{rows[0].nodes} nodes"
    yield f"MB = 2^20 bytes. {nodes}{f', {graphs[0]}' if graphs else ''}."
    yield "message: of one node, by the law of the method's paper; paper ratio = dense / message."
    for method, law in dict.fromkeys((row.method, row.law) for row in rows):
        yield f"    {method}: {law}"
    yield "sent: by a node per step, a message to several nodes several times, as the transport counts it;"
    if rows[0].steps is not None:
        yield f"    here the mean over the first {rows[0].steps} steps, with any warm-up;"
    yield "    wire ratio = what an exact all-reduce sends, 2(n-1)/n · dense, / sent."
    if not all(row.exact for row in rows):
        yield "≤, ≥: some message's length depends on the data, and this is its bound."
    if any(row.algorithm.partition(":")[0] == "dgc" and (row.paper_ratio or 0) < DGC_LEAST for row in rows):
        yield "dgc: the 270-600 × of its paper are those of large models, at ratio=0.001."
    for row in rows:
        if row.busiest_sent_bytes > 1.01 * row.sent_bytes:
            busiest = f"{row.busiest_sent_bytes / MB:.4f} MB"
            yield f"{row.model}, {row.method}: sent is the mean over the nodes; the busiest sends {busiest}."


# -- the command -------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``bytes``."""
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="MODEL",
        help=f"{', '.join(shapes.built_in())}, or a file of shapes (python -m experiments.shapes writes one)",
    )
    add("--algorithm", nargs="+", default=["dgc"], metavar="SPEC", help="one or more methods (dgc)")
    add("--compressor", metavar="SPEC", help="of the methods that use one (the method's)")
    add("--topology", default="ring", metavar="SPEC", help="of the methods that use one (%(default)s)")
    add("--nodes", type=positive_int, default=4, metavar="N", help="(%(default)s)")
    add("--bucket-mb", type=float, metavar="MB", help="as in training (the method's)")
    add("--steps", type=positive_int, metavar="N", help="of the first N, with any warm-up (a long run's)")
    add("--json", action="store_true", help="as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> None:
    """Print the table, or the rows as JSON. Raises `UsageError`, also for a compressor that nobody uses."""
    if args.compressor and not any(make_algorithm(one).uses_compressor for one in args.algorithm):
        raise UsageError(
            f"--compressor {args.compressor}: {' and '.join(args.algorithm)} would not use it. Leave it out, "
            "or name a method that does, such as --algorithm qsgd (python -m gossip list algorithms)."
        )
    rows = [
        row(model, algorithm, args.compressor, args.topology, args.nodes, args.bucket_mb, args.steps)
        for model in map(shapes.load, args.models)
        for algorithm in args.algorithm
    ]
    if args.json:
        ratios = [{"paper_ratio": row.paper_ratio, "wire_ratio": row.wire_ratio} for row in rows]
        print(json.dumps([asdict(row) | more for row, more in zip(rows, ratios, strict=True)], indent=2))
    else:
        print(table(rows))
