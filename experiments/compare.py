"""Finished runs side by side: mean ± standard deviation over seeds, and the difference to the first group.

    python -m gossip compare runs/a runs/b --out page     # page/compare.md and compare.png besides

A RUN is a run folder, or a folder of them such as a sweep's. Runs that differ only in their seed share a row.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from experiments import plot
from experiments.curves import MB, Group, Spread, curve, group
from experiments.runs import IMMATERIAL, find, flag
from gossip import files
from gossip.errors import UsageError

NONE = "–"
Row = tuple[str, ...]


def table(groups: Sequence[Group]) -> tuple[Row, list[Row]]:
    """Head and rows of the comparison, as text; the first group is what the others are compared with."""
    head = (
        "method",
        "seeds",
        plot.label(groups[0].headline),
        "against the first",
        "single nodes",
        "epochs",
        "sent, MB per step",
        "sent in all, GB",
        "time, min",
        "exposed wait, ms",
        "compression error",
        "consensus distance",
    )
    return head, [tuple(_row(each, groups[0])) for each in groups]


def _row(each: Group, first: Group) -> Iterator[str]:
    result = each.spread(each.headline.key)
    reference = first.spread(first.headline.key)
    finished = len(each.finished)
    yield each.label
    yield str(finished) if finished == len(each.runs) else f"{finished} of {len(each.runs)}"
    yield result.show(".2f") if result else "diverged" if each.diverged else "unfinished"
    compared = result is not None and reference is not None and each is not first
    yield result.minus(reference).show("+.2f") if compared and result and reference else NONE
    yield _show(each.spread(f"{each.headline.key}_local_mean"), ".2f")
    for fixed_by_settings, form in (
        (each.spread("epochs"), ".4g"),
        (each.spread(lambda summary: summary["bytes_sent_per_step"] / MB), ".3f"),
        (each.spread(lambda s: s["bytes_sent_per_step"] * s["steps"] * s["nodes"] / MB / 1024), ".2f"),
    ):
        yield f"{fixed_by_settings.mean:{form}}" if fixed_by_settings else NONE
    yield _show(each.spread(lambda summary: summary["seconds"] / 60), ".1f")
    yield _show(each.spread("exposed_wait_ms"), ".2f")
    yield _show(each.spread("compression_error"), ".3g")
    yield _show(each.spread("consensus_distance"), ".2g")


def _show(spread: Spread | None, form: str) -> str:
    return spread.show(form) if spread else NONE


def notes(groups: Sequence[Group]) -> Iterator[str]:
    """What the numbers are, and every run that is missing in them."""
    yield (
        "Final values of the model averaged over the nodes; mean ± sample standard deviation over seeds. "
        "The difference is that of the means, ± √(s²/n + s'²/n'). MB = 2^20 and GB = 2^30 bytes; sent per "
        "step by a node (their mean), in all by all of them. Time is the wall time of the whole "
        "run, exposed wait that of the median step. Compression error is what codecs lose, in norms, of the "
        "vectors that they are given: what Slim-DP does not give them is not in it."
    )
    if any((run.summary or {}).get("virtual_nodes") for each in groups for run in each.runs):
        yield (
            "Some runs are virtual nodes: one process computes for all of them in turn, so its times tell "
            "nothing about a network."
        )
    caveats = dict.fromkeys(run.caveat for each in groups for run in each.runs)
    yield from (f"Data: {caveat}." for caveat in caveats if caveat)
    for each in groups:
        for run in each.runs:
            if run.diverged:
                summary = run.summary or {}
                where = f"step {summary['diverged_step']}, rank {summary['diverged_rank']}"
                yield f"{each.label}: seed {run.seed} diverged at {where}."
            elif not run.finished:
                yield f"{each.label}: seed {run.seed} has not finished ({run.path})."


def as_text(head: Row, rows: Sequence[Row]) -> str:
    """For the terminal: columns of equal width, the head over as many lines as it needs."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    wrapped = [_wrap(words, max(width, 9)) for words, width in zip(head, widths, strict=True)]
    widths = [max(width, *map(len, lines)) for width, lines in zip(widths, wrapped, strict=True)]
    height = max(map(len, wrapped))
    tops = [tuple(([""] * (height - len(lines)) + lines)[i] for lines in wrapped) for i in range(height)]
    ruler = tuple("─" * width for width in widths)
    lines = (
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in (*tops, ruler, *rows))
    )
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(head: Row, rows: Sequence[Row], groups: Sequence[Group], relative_to: Path) -> str:
    """The table with a column of links to the runs, and under it the command that repeats each row."""
    lines = [f"| {' | '.join((*head, 'runs'))} |", "|" + " --- |" * (len(head) + 1)]
    for row, each in zip(rows, groups, strict=True):
        links = (f"[seed {run.seed}]({quote(os.path.relpath(run.path, relative_to))})" for run in each.runs)
        lines.append(f"| {' | '.join((*row, ', '.join(links)))} |")
    lines += ["", *(f"- {note}" for note in notes(groups))]
    lines += ["", "Each row again (one seed):", "", "```sh"]
    lines += [f"{_command(each)}    # {each.label}" for each in groups]
    return "\n".join([*lines, "```"]) + "\n"


def _command(each: Group) -> str:
    """A run's settings as flags, into a new folder: what was typed may have resumed or overwritten one.

    Of a run that has ended, if there is one: it says how it was launched.
    """
    run = next((run for run in each.runs if run.summary is not None), each.runs[0])
    launcher, *_ = str((run.summary or {}).get("command") or "").partition("python -m")
    left_out = IMMATERIAL - {"data-dir"}
    flags = (flag(key, value) for key, value in run.config.items() if key not in left_out)
    return f"{launcher}python -m experiments.train {shlex.join(flags)}"


def _wrap(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], joined] if len(joined) <= width or not lines[-1] else [*lines, word]
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m gossip compare``."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write compare.md and compare.png there too")


def run(args: argparse.Namespace) -> None:
    """Print the table; with ``--out`` write the page and the picture."""
    groups = group(find(args.runs))
    if not any(run.summary for each in groups for run in each.runs):
        raise UsageError(f"no run has finished in {', '.join(map(str, args.runs))}")
    head, rows = table(groups)
    print("\n".join([as_text(head, rows), "", *notes(groups)]))
    if args.out is None:
        return
    files.make(args.out)
    page = args.out / "compare.md"
    text = as_markdown(head, rows, groups, args.out)
    tested = groups[0].headline
    picture = args.out / "compare.png"
    curves = [curve(each, tested.key) for each in groups]
    if plot.draw_comparison(curves, [curve(each, "consensus_distance") for each in groups], tested, picture):
        text += "\n![the runs against epochs, bytes and time](compare.png)\n"
    files.replace_text(page, text)
    print(f"\n{page}")
