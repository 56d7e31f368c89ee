"""Rates and durations as people write them: ``100Mbit``, ``1.4Gbit``, ``5ms``, ``0.13 ms``."""

from __future__ import annotations

import re

from gossip.errors import UsageError

_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_DURATIONS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def bandwidth(text: str) -> float:
    """``"100Mbit"`` -> 1e8, in bit/s; ``/s`` may follow. Raises UsageError."""
    value = _parse(text.strip().removesuffix("/s").removesuffix("ps"), _RATES)
    if value is None or value <= 0:
        raise UsageError(
            f"bandwidth {text!r}: give a rate above 0 with its unit, such as 100Mbit or 1.4Gbit."
        )
    return value


def duration(text: str) -> float:
    """``"5ms"`` -> 0.005, in seconds. Raises UsageError."""
    value = _parse(text.strip(), _DURATIONS)
    if value is None:
        raise UsageError(f"time {text!r}: give 0 or more with its unit, such as 5ms or 0.13ms.")
    return value


def show_bandwidth(bits_per_second: float) -> str:
    """1e8 -> ``"100 Mbit/s"``."""
    unit, size = max(
        ((u, s) for u, s in _RATES.items() if s <= bits_per_second),
        default=("bit", 1.0),
        key=lambda us: us[1],
    )
    return f"{bits_per_second / size:.4g} {unit.capitalize() if size > 1e3 else unit}/s"


def show_duration(seconds: float) -> str:
    """0.005 -> ``"5 ms"``; from a second on ``"1.2 s"``."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _parse(text: str, units: dict[str, float]) -> float | None:
    matched = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-zµ]*)", text)
    if matched is None:
        return None
    number, unit = matched.groups()
    if unit.lower() not in units:
        return 0.0 if float(number) == 0 and not unit else None
    return float(number) * units[unit.lower()]
