"""What benchmarks of work on one vector share: CPU time per value, for one size after the other."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from compressors import kernels

SMALLEST = 16
"""Sizes are 2^16, 2^18, … values."""


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def parser(about: str | None) -> argparse.ArgumentParser:
    """With the options that all of them have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=24, metavar="E", help="sizes up to 2^E (%(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="the least of these counts (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    return parser


def run(
    args: argparse.Namespace,
    title: str,
    columns: Mapping[str, str],
    measure: Callable[[int], Mapping[str, float]],
    settings: Mapping[str, float],
) -> None:
    """Print a table while it is measured, a row per size; write the numbers to ``--json``.

    Args:
        columns: by head, the format of a row, such as ``{core_ns:.2f}``.
        measure: the numbers of a vector of so many values, one thread; ``values`` is among them.
        settings: what else the file shall tell.
    """
    torch.set_num_threads(1)
    about = f"torch {torch.__version__}, one thread, {kernels.status()}, {platform.processor() or 'CPU'}"
    print(f"{title}; {about}")
    print(f"| {' | '.join(columns)} |\n|{'---:|' * len(columns)}")
    rows: list[Mapping[str, Any]] = []
    for exponent in range(SMALLEST, args.largest + 1, 2):
        rows.append(measure(2**exponent))
        print(f"| {' | '.join(form.format(**rows[-1]) for form in columns.values())} |", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({"about": about, **settings, "rows": rows}, indent=1))
