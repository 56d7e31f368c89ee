"""Files that are whole at any time, whoever reads them and whenever the writer ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gossip.errors import GossipError, WriteError


def replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` write a file beside `path`, then put it there: readers find the old one or the new one.

    Raises:
        WriteError: it could not be written; what was at `path` is there still.
    """
    partial = path.with_name(f"{path.name}.partial")
    with writing(path):
        try:
            with open(partial, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def make(folder: Path) -> None:
    """Make `folder` if it is not there, with those that it is in. Raises `WriteError`."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def replace_text(path: Path, text: str) -> None:
    """`replace` by a text, in UTF-8."""
    replace(path, lambda file: file.write(text.encode()))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing to `path` into a `WriteError`."""
    handled = sys.exc_info()[1]  # this may run where another error is being handled, which is none of ours
    try:
        yield
    except GossipError:
        raise
    except Exception as error:  # torch.save hides the system's error behind a RuntimeError of its own
        reason = _system_error(error, handled)
        if reason is None:
            raise
        raise WriteError(f"{path} cannot be written: {reason.strerror or reason}.") from error


def _system_error(error: BaseException | None, handled: BaseException | None) -> OSError | None:
    while error is not None and error is not handled:
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
