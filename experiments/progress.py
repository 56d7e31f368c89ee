"""What a run says on the terminal: a line per log interval, and a live bar where someone is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from experiments.headline import ACCURACY, headline

BAR_WIDTH = 30
REFRESH_SECONDS = 0.2


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def size(n: float) -> str:
    """``1.09 MB`` (2^20 bytes), ``12.3 kB`` or ``87 B``."""
    if n >= 2**19:
        return f"{n / 2**20:.2f} MB"
    return f"{n / 2**10:.1f} kB" if n >= 1000 else f"{n:.0f} B"


def count(n: int, what: str) -> str:
    """``1 node`` or ``8 nodes``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


class Progress:
    """Rank 0 talks, the other ranks keep quiet.

    Args:
        talks: whether this rank is the one that prints.
        step, total: where the run starts and ends.
    """

    def __init__(self, talks: bool, step: int, total: int) -> None:
        self._talks, self._total = talks, total
        self._bar = talks and sys.stderr.isatty()
        self._first, self._start, self._drawn = step, time.monotonic(), 0.0

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._talks:
            self._clear()
            print(text, flush=True)

    def tick(self, step: int) -> None:
        """A step is over: redraw the live bar now and then."""
        now = time.monotonic()
        if self._bar and now - self._drawn >= REFRESH_SECONDS:
            self._drawn = now
            done = BAR_WIDTH * step // self._total
            bar = "━" * done + " " * (BAR_WIDTH - done)
            text = f"\r{bar} {step}/{self._total}  {self._eta(step)} left "
            print(text, end="", file=sys.stderr, flush=True)

    def interval(self, row: Mapping[str, Any]) -> None:
        """The line of one log interval; `row` as in metrics.jsonl."""
        text = (
            f"step {row['step']:>{len(str(self._total))}}/{self._total}  epoch {row['epoch']:.2f}  "
            f"loss {row['loss']:.4f}  lr {row['lr']:.2g}  {row['step_ms']:.0f} ms/step  "
            f"wait {row['exposed_wait_ms']:.1f} ms  {size(row['bytes_sent_per_step'])}/step  "
            f"ETA {self._eta(row['step'])}"
        )
        if (shown := headline(row)) is not None:
            text += (
                f"\n  {shown.title} {row[shown.key]:.2f}{shown.suffix} (averaged model)  "
                f"test loss {row['test_loss']:.4f}  consensus distance {row['consensus_distance']:.3g}"
            )
        self.say(text)

    def _eta(self, step: int) -> str:
        taken = step - self._first
        if taken <= 0:
            return "?"
        return duration((time.monotonic() - self._start) / taken * (self._total - step))

    def _clear(self) -> None:
        if self._bar:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def describe(summary: Mapping[str, Any]) -> str:
    """The last words of a run: `summary` as in summary.json."""
    sent, dense = summary["bytes_sent_per_step"], summary["allreduce_bytes_per_step"]
    share = f", {sent / dense:.0%} of the {size(dense)} that all-reduce sends" if dense else ""
    turns = (
        " (virtual nodes wait for each other's turns, not for a network)" if summary["virtual_nodes"] else ""
    )
    what = f"{summary['algorithm']}, {summary['topology']}, {summary['compressor']}"
    shown = headline(summary) or ACCURACY
    local = [f"{summary[f'{shown.key}_local_{which}']:.2f}" for which in ("min", "max")]
    lines = [
        f"{what}: {count(summary['nodes'], 'node')}, {count(summary['steps'], 'step')} "
        f"in {duration(summary['seconds'])}",
        f"  {shown.title:<20} {summary[shown.key]:.2f}{shown.suffix} averaged model; single nodes "
        f"{' to '.join(local)}{shown.suffix}",
        f"  consensus distance   {summary['consensus_distance']:.4g}",
        f"  sent per step        {size(sent)} in {summary['messages_sent_per_step']:.3g} messages{share}",
        f"  median step          {summary['step_ms']:.1f} ms, of which compute {summary['compute_ms']:.1f}, "
        f"encode {summary['encode_ms']:.1f}, decode {summary['decode_ms']:.1f}",
        f"  exposed wait         {summary['exposed_wait_ms']:.2f} ms in the median step, "
        f"{summary['exposed_wait_ms_mean']:.2f} ms on average{turns}",
    ]
    if summary["nodes"] > 1:
        lines.append(f"  slowest rank         {summary['slowest_rank']}")
    return "\n".join(lines)
