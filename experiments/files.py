"""Files that are whole at any time, whoever reads them and whenever the writer ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a file beside `path`, then put it there: readers find the old one or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    write(partial)
    os.replace(partial, path)
