"""The number that runs are judged by: test accuracy for images, test perplexity for text."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    """What people read of a test: its key in metrics.jsonl and summary.json, its name and its unit."""

    key: str
    title: str
    unit: str = ""

    @property
    def suffix(self) -> str:
        """The unit, to be written behind a value."""
        return f" {self.unit}" if self.unit else ""


ACCURACY = Headline("test_accuracy", "test accuracy", "%")
PERPLEXITY = Headline("test_perplexity", "test perplexity")


def headline(row: Container[str]) -> Headline | None:
    """The one that `row`, a line of metrics.jsonl or a summary, holds; None if it holds no test."""
    return next((found for found in (ACCURACY, PERPLEXITY) if found.key in row), None)
