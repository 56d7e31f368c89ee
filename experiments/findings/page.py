"""The findings as a page, and what is kept of the runs beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.curves import Spread
from experiments.findings.statements import (
    KOLOSKOVA,
    MATCHES_WITHIN,
    MUCH_WORSE_FROM,
    NODES,
    NORMS,
    STUCK_BELOW,
    Cell,
    Findings,
    Verdict,
)
from experiments.runs import Run
from experiments.sweep.grid import SweepFile

FILE = Path(__file__).parents[1] / "findings.toml"

KEPT = (
    *("step", "epoch", "loss", "lr", "test_accuracy", "test_loss", "consensus_distance"),
    *("compression_error", "bytes_sent_per_step", "step_ms"),
)
"""What is kept of every line of metrics.jsonl."""

WORDS = {
    "matches": "converges like all-reduce",
    "worse": "is somewhat worse than all-reduce",
    "much worse": "is much worse than all-reduce",
    "fails": "does not converge",
    "missing": "has not been run",
}


HEAD = """\
# Findings about convergence

Written by `make findings` ([what was run](../../findings.toml), [how it is judged](../../findings)).

**Scaled down**: {model} on {dataset}, {epochs:g} epochs with {schedule} decay from {lr:g}, batch {batch}
per node, momentum {momentum:g}, weight decay {decay:g}, ring, virtual nodes. The papers trained ResNet-20
on the full images for some hundred epochs and tuned each method's learning rate. Seeds {seeds}; {done} of
{runs} runs are done, {hours:.1f} hours of processes in all. Each run's config, log and numbers are in
[runs](runs); `python -m gossip compare experiments/results/findings/runs` puts them side by side.

*Gap*: all-reduce's test accuracy minus the method's, averaged models after the last step, mean over seeds
± standard deviation of the difference, in points; *to D-PSGD*: the same against gossip of exact messages,
which is what compression costs. A method *converges like all-reduce* up to a gap of {matches:g} if no seed
diverges, is *much slower or worse* from {worse:g} on, and *does not converge* if most seeds diverge or the
accuracy stays below {stuck:g} %. These bounds were fixed beforehand.
"""


def page(findings: Findings, verdicts: Sequence[Verdict], pictures: Sequence[str]) -> str:
    """Markdown. Pictures and the folder ``runs`` stand beside it."""
    return "\n".join(
        [
            _head(findings),
            "## Statements\n",
            *_statements(findings, verdicts),
            "\n## Where a statement did not hold\n",
            *_explanations(findings, verdicts),
            "\n## All numbers\n",
            *_numbers(findings),
            *(["\n## Pictures\n", *(f"![{name}]({name})\n" for name in pictures)] if pictures else []),
        ]
    )


def _head(findings: Findings) -> str:
    runs = [run for group in findings.groups.values() for run in group.runs]
    wanted = SweepFile.read(FILE).points(sorted(findings.seeds))
    config, done = runs[0].config, [run for run in runs if run.summary is not None]
    return HEAD.format(
        model=config["model"],
        dataset=config["dataset"],
        epochs=config["epochs"],
        schedule=config["lr-schedule"],
        lr=config["lr"],
        batch=config["batch-size"],
        momentum=config["momentum"],
        decay=config["weight-decay"],
        seeds=", ".join(map(str, sorted({run.seed for run in runs}))),
        done=len(done),
        runs=len(wanted),
        hours=sum((run.summary or {})["seconds"] for run in done) / 3600,
        matches=MATCHES_WITHIN,
        worse=MUCH_WORSE_FROM,
        stuck=STUCK_BELOW,
    )


def _statements(findings: Findings, verdicts: Sequence[Verdict]) -> Iterator[str]:
    places = [(nodes, norm) for nodes in NODES for norm in NORMS]
    heads = (f"{nodes} nodes, {NORMS[norm]}" for nodes, norm in places)
    yield f"| statement | source | {' | '.join(heads)} |"
    yield "|" + " --- |" * (2 + len(places))
    for statement in dict.fromkeys(verdict.statement for verdict in verdicts):
        own = {(v.cell.nodes, v.cell.norm or "max"): v for v in verdicts if v.statement == statement}
        shown = (_verdict(findings, own[place]) if place in own else "" for place in places)
        yield f"| {statement.text} | {statement.source} | {' | '.join(shown)} |"
    yield (
        f"\n{KOLOSKOVA}, is about 8 nodes and l2 norms per layer (with one bit more than it counts), and "
        "judged there alone. The norm and block of Tang et al. are not known here. Exact messages have no "
        "norm."
    )


def _verdict(findings: Findings, verdict: Verdict) -> str:
    if verdict.held is None:
        return "not run"
    word = "**held**" if verdict.held else "**not held**"
    beyond = _to_dpsgd(findings, verdict.cell)
    return f"{word}: {outcome(findings, verdict.cell)}" + (f"; to D-PSGD {beyond}" if beyond else "")


def outcome(findings: Findings, cell: Cell) -> str:
    """``gap 0.31 ± 0.40``, or how many seeds diverged."""
    group, gap = findings.groups[cell], findings.gap(cell)
    diverged = f"{len(group.diverged)} of {len(group.runs)} diverged" if group.diverged else ""
    return ", ".join(filter(None, [f"gap {gap.show('.2f')}" if gap else "", diverged])) or "–"


def _explanations(findings: Findings, verdicts: Sequence[Verdict]) -> Iterator[str]:
    wrong = [verdict for verdict in verdicts if verdict.held is False]
    if not wrong:
        yield "Everywhere it did."
    for verdict in wrong:
        cell = verdict.cell
        place = f"{cell.nodes} nodes" + (f", {NORMS[cell.norm]}" if cell.norm else "")
        yield (
            f"- *{verdict.statement.text}* ({verdict.statement.source}), {place}: it "
            f"{WORDS[verdict.behaviour]} ({outcome(findings, cell)}). {_exact_gossip(findings, cell)}"
            f"Measured: {findings.explanation(cell)}."
        )


def _to_dpsgd(findings: Findings, cell: Cell) -> str:
    """What compression alone costs: the gap beyond the one that exact gossip has."""
    own, exact = findings.accuracy(cell), findings.accuracy(Cell(cell.nodes, "dpsgd"))
    return exact.minus(own).show(".2f") if cell.norm and own and exact else ""


def _exact_gossip(findings: Findings, cell: Cell) -> str:
    gap = findings.gap(Cell(cell.nodes, "dpsgd"))
    return f"D-PSGD, which sends 32 bits, has a gap of {gap.show('.2f')}. " if cell.norm and gap else ""


def _numbers(findings: Findings) -> Iterator[str]:
    heads = (
        *("nodes", "method", "codec", "seeds", "test accuracy, %", "gap", "training loss, last epoch"),
        *("compression error", "consensus distance", "run"),
    )
    yield "A row again, with its name for NAME:\n"
    yield "```sh"
    yield "python -m gossip sweep experiments/findings.toml --set data-dir=data --only 'NAME-seed*'"
    yield "```\n"
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for cell, group in sorted(findings.groups.items()):
        codec = f"{cell.bits} bit, {NORMS[cell.norm]}" if cell.norm else "32 bit"
        values = (
            _show(findings.accuracy(cell), ".2f"),
            outcome(findings, cell).removeprefix("gap "),
            _show(findings.train_loss(cell), ".3f"),
            _show(findings.error(cell), ".3g"),
            _show(group.spread("consensus_distance"), ".2g"),
            group.runs[0].path.name.removesuffix(f"-seed{group.runs[0].seed}"),
        )
        yield f"| {cell.nodes} | {cell.algorithm} | {codec} | {len(group.runs)} | {' | '.join(values)} |"


def _show(spread: Spread | None, form: str) -> str:
    return spread.show(form) if spread else "–"


def keep(run: Run, out: Path) -> None:
    """Copy a run's config, summary, log and the `KEPT` numbers into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.toml", "summary.json", "log.txt"):
        if (run.path / name).exists():
            shutil.copyfile(run.path / name, out / name)
    rows = ({key: row[key] for key in KEPT if key in row} for row in run.rows)
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
