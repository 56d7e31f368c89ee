"""What a rank measures, on made-up statistics."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.meter import Meter, aggregate, slowest_rank


class Taken:
    """Statistics with what `take` shall give, interval by interval."""

    def __init__(self, *intervals: dict[str, Any]) -> None:
        self.intervals = list(intervals)

    def take(self) -> dict[str, Any]:
        return self.intervals.pop(0)


def interval(steps: int, error: float | None, sent: int = 0) -> dict[str, Any]:
    parts = {"encode_ms": 1.0, "decode_ms": 2.0, "mix_ms": 3.0, "exposed_wait_ms": 4.0}
    return {
        **{name: [value] * steps for name, value in parts.items()},
        "bytes_sent": sent,
        "messages_sent": steps,
        "compression_error": error,
        "wait_ms_by_neighbor": {1: 8.0},
    }


def metered(*intervals: tuple[list[float], float | None, int]) -> tuple[Meter, list[dict[str, Any]]]:
    """A meter after these intervals of losses, errors and bytes; every step took 30 ms."""
    meter = Meter(Taken(*(interval(len(losses), error, sent) for losses, error, sent in intervals)))  # type: ignore[arg-type]
    rows = []
    for losses, _, _ in intervals:
        for loss in losses:
            with meter.step():
                pass
            meter._interval["step_ms"][-1] = 30.0
            meter.record(loss, lr=0.1)
        rows.append(meter.close_interval())
    return meter, rows


def test_what_is_left_of_a_step_is_computing() -> None:
    meter, (row,) = metered(([1.0, 3.0], None, 10))
    assert row["compute_ms"] == 30 - 1 - 2 - 3 - 4 and row["loss"] == 2
    assert row["bytes_sent_per_step"] == 5 and row["wait_ms_by_neighbor"] == {1: 4.0}
    assert meter.result(1)["compute_ms"] == 20


def test_errors_count_by_the_steps_of_their_interval() -> None:
    meter, rows = metered(([1.0], 0.4, 8), ([1.0, 1.0, 1.0], 0.2, 4), ([1.0], None, 0))
    assert [row["compression_error"] for row in rows] == [0.4, 0.2, None]
    result = meter.result(1)
    assert result["compression_error"] == pytest.approx((0.4 + 3 * 0.2) / 4)
    assert result["bytes_sent_per_step"] == 12 / 5


def test_the_training_loss_is_that_of_the_last_steps() -> None:
    meter, _ = metered(([9.0, 8.0, 3.0, 1.0], None, 0))
    assert meter.result(2)["train_loss"] == 2


def test_ranks_make_one_line() -> None:
    rows: list[dict[str, Any]] = [
        {"compute_ms": 1.0, "e": None, "w": {1: 2.0}},
        {"compute_ms": 4.0, "e": 3.0, "w": {0: 5.0}},
    ]
    line = aggregate(rows)
    assert (line["compute_ms_min"], line["compute_ms"], line["compute_ms_max"]) == (1, 2.5, 4)
    assert line["e"] == 3 and line["w"] == {0: {1: 2.0}, 1: {0: 5.0}}
    assert slowest_rank(rows) == 1
