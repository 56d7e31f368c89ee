"""The findings as a page, and what is kept of the runs beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.curves import Spread
from experiments.findings.cells import FILE, NODES, Cell, points, seeds
from experiments.findings.statements import (
    KOLOSKOVA,
    MATCHES_WITHIN,
    MUCH_WORSE_FROM,
    STUCK_BELOW,
    Findings,
    Verdict,
)
from experiments.runs import Run
from experiments.sweep.grid import SweepFile

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
}

HEAD = """\
# Findings about convergence

Written by `make findings` ([what was run](../../findings.toml), [how it is judged](../../findings)).

**Scaled down**: {model} on {dataset}, {epochs:g} epochs with {schedule} decay from {lr:g}, batch {batch}
per node, momentum {momentum:g}, weight decay {decay:g}, {topology}, seeds {seeds}.
{done} of {runs} runs are done, {hours:.1f} hours of processes in all. {data}
Each run's config, log and numbers are in [runs](runs);
`python -m gossip compare experiments/results/findings/runs` puts them side by side.

The statements are from {source}.
What is different here:

{deviations}

*Gap*: all-reduce's test accuracy minus the method's, averaged models after the last step, mean over seeds
± standard deviation of the difference, in points; *to D-PSGD*: the same against gossip of exact messages,
which is what compression costs. A method *converges like all-reduce* up to a gap of {matches:g} if no seed
diverges, is *much slower or worse* from {worse:g} on, and *does not converge* if most seeds diverge or the
accuracy stays below {stuck:g} %. These bounds were fixed beforehand.

Where neither a compressed method nor D-PSGD converges like all-reduce, the gap is the ring's, too. There the
same bounds are applied to what the method loses *to D-PSGD*, and the verdict says so. This was decided after
runs of the first seed had been seen.
"""


def page(findings: Findings, verdicts: Sequence[Verdict], pictures: Mapping[str, str]) -> str:
    """Markdown. `pictures` (file name: caption) and the folder ``runs`` stand beside it."""
    return "\n".join(
        [
            _head(findings),
            "## Statements\n",
            *_statements(findings, verdicts),
            "\n## Where a statement did not hold, or was judged against D-PSGD\n",
            *_explanations(findings, verdicts),
            "\n## All numbers\n",
            *_numbers(findings),
            *(["\n## Pictures\n"] if pictures else []),
            *(f"![{name}]({name})\n\n{caption}\n" for name, caption in pictures.items()),
        ]
    )


def _head(findings: Findings) -> str:
    runs = [run for group in findings.groups.values() for run in group.runs]
    about, args = SweepFile.read(FILE).about, points()[0].args
    done = [run.summary for run in runs if run.summary is not None]
    return HEAD.format(
        model=args.model,
        dataset=args.dataset,
        epochs=args.epochs,
        schedule=args.lr_schedule,
        lr=args.lr,
        batch=args.batch_size,
        momentum=args.momentum,
        decay=args.weight_decay,
        topology=args.topology,
        seeds=", ".join(map(str, sorted(seeds()))),
        done=len(done),
        runs=len(points()),
        hours=sum(summary["seconds"] for summary in done) / 3600,
        data=_data(runs),
        source=about["source"],
        deviations="\n".join(f"- {deviation}" for deviation in about["deviations"]),
        matches=MATCHES_WITHIN,
        worse=MUCH_WORSE_FROM,
        stuck=STUCK_BELOW,
    )


def _data(runs: Sequence[Run]) -> str:
    """Which copy of the data the runs read, as far as they say."""
    digests = [run.settings.get("data") for run in runs]
    silent = digests.count(None)
    if silent == len(runs):
        return "Which copy of the data they read, the runs do not say."
    known = next(digest for digest in digests if digest)
    caveats = dict.fromkeys(run.caveat for run in runs if run.caveat)
    said = [f"The data's digest is `{known}`{f'; {silent} runs do not say theirs' if silent else ''}."]
    return " ".join([*said, *(f"**The data are {caveat}.**" for caveat in caveats)])


def _statements(findings: Findings, verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"| statement | source | messages | {' | '.join(f'{nodes} nodes' for nodes in NODES)} |"
    yield "|" + " --- |" * (3 + len(NODES))
    rows: dict[tuple[str, str, str], dict[int, Verdict]] = {}
    for verdict in verdicts:
        row = (verdict.statement.text, verdict.statement.source, verdict.cell.messages)
        rows.setdefault(row, {})[verdict.cell.nodes] = verdict
    for row, own in rows.items():
        shown = (_verdict(findings, own[nodes]) if nodes in own else "" for nodes in NODES)
        yield f"| {' | '.join((*row, *shown))} |"
    yield (
        f"\n{KOLOSKOVA}, is about 8 nodes and l2 norms per layer, and judged there alone. The norm and block "
        "of Tang et al. are not known here. *Open, k of n seeds*: the method's runs, all-reduce's and, for a "
        "compressed method, D-PSGD's have ended for k of them; the numbers are of what has ended."
    )


def _verdict(findings: Findings, verdict: Verdict) -> str:
    cell = verdict.cell
    word = f"**{verdict.word}**" if verdict.held is not None else _open(findings, cell)
    beyond = f"to D-PSGD {cost}" if (cost := _cost(findings, cell)) else ""
    numbers = "; ".join(filter(None, [outcome(findings, cell), beyond]))
    return f"{word}: {numbers}" if numbers else word


def _open(findings: Findings, cell: Cell) -> str:
    needed = [cell, Cell(cell.nodes, "allreduce"), *([Cell(cell.nodes, "dpsgd")] if cell.norm else [])]
    there = seeds().intersection(*map(findings.ended, needed))
    if there < seeds():
        return f"open, {len(there)} of {len(seeds())} seeds"
    return "open, what it is compared with does not converge itself"


def outcome(findings: Findings, cell: Cell) -> str:
    """``gap 0.31 ± 0.40``, or how many seeds diverged; nothing before the first run ended."""
    gap, group = findings.gap(cell), findings.groups.get(cell)
    diverged = (
        f"{len(group.diverged)} of {len(findings.ended(cell))} diverged" if group and group.diverged else ""
    )
    return ", ".join(filter(None, [f"gap {gap.show('.2f')}" if gap else "", diverged]))


def _cost(findings: Findings, cell: Cell) -> str:
    """What compression alone costs: points lost to exact gossip."""
    cost = findings.gap(cell, "dpsgd")
    return cost.show("+.2f") if cell.norm and cost else ""


def _explanations(findings: Findings, verdicts: Sequence[Verdict]) -> Iterator[str]:
    told = [verdict for verdict in verdicts if verdict.word not in ("held", "open")]
    if not told:
        judged = any(verdict.held for verdict in verdicts)
        yield "All that are judged held." if judged else "None is judged yet."
    for verdict in told:
        cell, statement = verdict.cell, verdict.statement
        place = f"{cell.nodes} nodes, {cell.messages}"
        why = (_against_dpsgd if verdict.against == "dpsgd" else _against_allreduce)(findings, verdict)
        measured = f" Measured: {findings.explanation(cell)}." if verdict.held is False else ""
        yield f"- *{statement.text}* ({statement.source}), {place}: {why}{measured}"


def _against_allreduce(findings: Findings, verdict: Verdict) -> str:
    cell, exact = verdict.cell, findings.gap(Cell(verdict.cell.nodes, "dpsgd"))
    assert verdict.behaviour is not None
    told = f"it {WORDS[verdict.behaviour]} ({outcome(findings, cell)})."
    return (
        f"{told} D-PSGD, which sends 32 bits, has a gap of {exact.show('.2f')}."
        if cell.norm and exact
        else told
    )


def _against_dpsgd(findings: Findings, verdict: Verdict) -> str:
    exact = Cell(verdict.cell.nodes, "dpsgd")
    return (
        f"{outcome(findings, verdict.cell)}. Exact gossip does not match all-reduce here either "
        f"({outcome(findings, exact)}); compression adds {_cost(findings, verdict.cell)} points to that: "
        f"{verdict.word}."
    )


def _numbers(findings: Findings) -> Iterator[str]:
    heads = (
        *("nodes", "method", "messages", "seeds", "test accuracy, %", "gap", "training loss, last epoch"),
        *("compression error", "consensus distance", "run"),
    )
    yield "*Seeds*: runs that have ended, of all. A row again, with its name for NAME:\n"
    yield "```sh"
    yield "python -m gossip sweep experiments/findings.toml --set data-dir=data --only 'NAME-seed*'"
    yield "```\n"
    yield f"| {' | '.join(heads)} |"
    yield "|" + " --- |" * len(heads)
    for cell, group in sorted(findings.groups.items()):
        values = (
            _show(findings.accuracy(cell), ".2f"),
            outcome(findings, cell).removeprefix("gap ") or "–",
            _show(findings.train_loss(cell), ".3f"),
            _show(findings.error(cell), ".3g"),
            _show(group.spread("consensus_distance"), ".2g"),
            group.label,
        )
        ended = f"{len(findings.ended(cell))} of {len(seeds())}"
        yield f"| {cell.nodes} | {cell.algorithm} | {cell.messages} | {ended} | {' | '.join(values)} |"


def _show(spread: Spread | None, form: str) -> str:
    return spread.show(form) if spread else "–"


def keep(run: Run, out: Path) -> None:
    """Copy a run's config, environment, summary, log and the `KEPT` numbers into the folder `out`."""
    if out.resolve() == run.path.resolve():
        return  # kept before, and judged again
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.toml", "env.json", "summary.json", "log.txt"):
        if (run.path / name).exists():
            shutil.copyfile(run.path / name, out / name)
    rows = ({key: row[key] for key in KEPT if key in row} for row in run.rows)
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
