"""A Markdown table of finished runs, one row per method and codec.

    python -m experiments.table runs/a runs/b …

Runs that differ only in their seed share a row: mean ± sample standard deviation. Every row links its runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.headline import ACCURACY, Headline, headline
from experiments.runfolder import RunFolder
from gossip.errors import UsageError

COLUMNS = (
    "method",
    "compressor",
    "{title}{unit}",
    "single nodes{unit}",
    "sent per step, MB",
    "of all-reduce",
    "compression error",
    "consensus distance",
    "runs",
)

Run = tuple[Path, dict[str, Any]]


def table(runs: Iterable[Path], relative_to: Path) -> str:
    """The table of `runs`, with links as seen from the folder `relative_to`.

    Raises:
        UsageError: a run that has not finished, or runs on images together with runs on text.
    """
    rows: dict[tuple[str, str], list[Run]] = {}
    tests: set[Headline] = set()
    for path in runs:
        summary = RunFolder(path).summary()
        if summary is None:
            raise UsageError(f"{path} holds no summary.json: has its run finished?")
        tests.update(filter(None, [headline(summary)]))
        rows.setdefault((summary["algorithm"], summary["compressor"]), []).append((path, summary))
    if len(tests) > 1:
        raise UsageError("runs on images and runs on text do not go into one table: make one of each")
    tested = tests.pop() if tests else ACCURACY
    unit = f", {tested.unit}" if tested.unit else ""
    columns = [column.format(title=tested.title, unit=unit) for column in COLUMNS]
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    lines += [f"| {' | '.join(_row(*key, group, tested.key, relative_to))} |" for key, group in rows.items()]
    return "\n".join(lines)


def _row(
    algorithm: str, compressor: str, group: Sequence[Run], tested: str, relative_to: Path
) -> Iterable[str]:
    summaries = [summary for _, summary in group]

    def mean_sd(key: str, form: str) -> str:
        values = [s[key] for s in summaries if s[key] is not None]
        if not values:
            return "–"
        sd = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):{form}}{sd}"

    exact = summaries[0]["compression_error"] is None
    sent = statistics.fmean(s["bytes_sent_per_step"] for s in summaries)
    yield algorithm
    yield "(32 bit)" if exact else compressor
    yield "diverged" if any(s["diverged"] for s in summaries) else mean_sd(tested, ".2f")
    yield mean_sd(f"{tested}_local_mean", ".2f")
    yield f"{sent / 2**20:.3f}"
    yield f"{100 * sent / summaries[0]['allreduce_bytes_per_step']:.0f} %"
    yield mean_sd("compression_error", ".3g")
    yield mean_sd("consensus_distance", ".2g")
    yield ", ".join(f"[seed {s['seed']}]({os.path.relpath(path, relative_to)})" for path, s in group)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.table", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders (--out of experiments.train)"
    )
    parser.add_argument(
        "--relative-to", type=Path, default=Path(), metavar="DIR", help="where the table will stand"
    )
    args = parser.parse_args(argv)
    try:
        print(table(args.runs, args.relative_to))
    except (UsageError, json.JSONDecodeError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
