"""The goodput benchmark: every setting of MPI on hosts of its own. Runs inside `isolation.run`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.netlab import goodput
from experiments.netlab.network import Network, allowed_congestion, steady_congestion
from experiments.netlab.results import Results
from experiments.netlab.running import PATIENCE, run_job, say, start_seconds
from gossip.errors import UsageError


@dataclass(frozen=True)
class Goodput:
    """The goodput benchmark.

    Attributes:
        settings: names, of goodput.SETTINGS.
        congestions: TCP's congestion controls.
        latency: seconds one way.
        rates: bit/s.
    """

    hosts: int
    settings: tuple[str, ...]
    congestions: tuple[str, ...]
    latency: float
    rates: tuple[float, ...]

    def estimate(self) -> float:
        """Seconds, about."""
        return sum(self.job_seconds(rate) for _, _, rate in self._jobs())

    def job_seconds(self, rate: float) -> float:
        """Of one job, about; messages get less than half of the rate at worst."""
        turns = 2 * (goodput.REPEATS + 1)
        ideal = sum(turns * 8 * size / rate for size, _ in goodput.cases(rate))
        return start_seconds(self.hosts) + 1.7 * ideal

    def _jobs(self) -> Iterator[tuple[str, str, float]]:
        """Congestion control, setting, rate: all with the first control, the most telling with the others."""
        first, *others = self.congestions
        yield from itertools.product([first], self.settings, self.rates)
        yield from itertools.product(others, [s for s in self.settings if s in goodput.TELLING], self.rates)

    def run(self, results: Results) -> None:
        """Measure; what fails is noted, and the rest goes on."""
        for congestion, setting, rate in self._jobs():
            rows = run_job(
                results,
                self.hosts,
                Network(rate, self.latency, congestion=congestion),
                60 + PATIENCE * self.job_seconds(rate),
                goodput.SETTINGS[setting],
                task="goodput",
                options={"rate": rate, "setting": setting, "plain": setting == self.settings[0]},
            )
            if rows is not None:
                results.goodput += [row | {"congestion": congestion} for row in rows]
                results.save()
                say(f"goodput, {setting}, {congestion}: {', '.join(_brief(rows, setting))}")


def _brief(rows: Sequence[goodput.Row], setting: str) -> Iterator[str]:
    """The shares of the smaller payload in one piece."""
    for row in rows:
        if (row["setting"], row["payload"], row["pieces"]) == (setting, goodput.PAYLOADS[0], 1):
            yield f"{row['goodput']:.0%} of {row['rate'] / 1e6:g} Mbit/s"


def congestions(named: Sequence[str] | None, quick: bool) -> tuple[str, ...]:
    """Those named; else the steady one, and in the full benchmark all others that hosts may use.

    Raises:
        UsageError: one is named that hosts may not use here.
    """
    first, allowed = steady_congestion(), allowed_congestion()
    for name in named or ():
        if name not in allowed:
            raise UsageError(
                f"--congestion {name}: hosts may use {', '.join(allowed)} here; others after sysctl -w "
                f"net.ipv4.tcp_allowed_congestion_control='{' '.join(allowed)} {name}', if the kernel has it."
            )
    return tuple(named or (first, *(name for name in allowed if name != first and not quick)))
