"""Judge the papers' statements by finished runs of experiments/findings.toml.

python -m experiments.findings runs/findings --out runs/findings-page
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from experiments.findings import pictures
from experiments.findings.page import keep, page
from experiments.findings.statements import Findings, judge
from experiments.runs import find
from gossip import cli
from gossip.errors import UsageError


def main() -> None:
    parser = cli.ArgumentParser(prog="python -m experiments.findings", description=__doc__)
    parser.add_argument("runs", type=Path, metavar="RUNS", help="the sweep's folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the page goes")
    args = parser.parse_args()
    runs = find([args.runs])
    if not any(run.summary for run in runs):
        raise UsageError(f"no run in {args.runs} has finished; make findings runs them")
    findings = Findings.of(runs)
    verdicts = judge(findings)
    args.out.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw(findings, args.out)
    (args.out / "README.md").write_text(page(findings, verdicts, drawn))
    for run in runs:
        keep(run, args.out / "runs" / run.path.name)
    counts = Counter(verdict.word for verdict in verdicts)
    print(f"{args.out / 'README.md'}: " + ", ".join(f"{count} {word}" for word, count in counts.items()))


if __name__ == "__main__":
    cli.run(main)
