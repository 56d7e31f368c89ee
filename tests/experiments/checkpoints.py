"""What ranks have saved, and whether two such states are bitwise the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def states(folder: Path, nodes: int = 3) -> list[dict[str, Any]]:
    """What the ranks saved last, without the wall times."""
    last = sorted((folder / "checkpoint").glob("step-*"))[-1]
    found = [torch.load(last / f"rank{rank}.pt", weights_only=True) for rank in range(nodes)]
    return [{name: value for name, value in state.items() if name != "meter"} for state in found]


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}/{i}")
    else:
        assert a == b, where
