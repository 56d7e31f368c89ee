"""How a job ends when one of its ranks fails: one message, an exit code, and no rank that goes on waiting."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import NoReturn

from gossip.errors import GossipError, UsageError
from gossip.transport.base import Transport

SECOND_HAND = 2.0
"""Seconds that a rank leaves to one which knows the cause, before it ends the job itself."""


def install_excepthook(transport: Transport) -> None:
    """End the whole job when an exception escapes on this rank, in any thread; print it once.

    A `GossipError` is printed as its message, anything else with its traceback, each line after the rank's
    name. The job's exit code is the error's `exit_code`, 130 for Ctrl-C, else 1. Errors that some other rank
    explains better wait for `SECOND_HAND` seconds: those that are `second_hand`, such as of a lost peer, and
    a `UsageError` off rank 0, which every rank raises alike.
    """
    pid = os.getpid()
    defaults = sys.excepthook, threading.excepthook

    def end(error: BaseException) -> NoReturn:
        if isinstance(error, GossipError) and (
            error.second_hand or (isinstance(error, UsageError) and transport.rank > 0)
        ):
            time.sleep(SECOND_HAND)
        if isinstance(error, KeyboardInterrupt):
            say(transport.rank, "interrupted")
            transport.abort(130)
        if isinstance(error, GossipError):
            say(transport.rank, str(error))
            transport.abort(error.exit_code)
        say(transport.rank, "".join(traceback.format_exception(error)))
        transport.abort(1)

    def in_main(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != pid:  # a fork (a data loader's worker) is not a rank
            defaults[0](kind, error, trace)
        else:
            end(error)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if os.getpid() != pid or args.exc_value is None or isinstance(args.exc_value, SystemExit):
            defaults[1](args)
        else:
            end(args.exc_value)

    sys.excepthook, threading.excepthook = in_main, in_thread


def say(rank: int, text: str) -> None:
    """`text` on stderr, every line after the rank's name, in one write so that ranks do not interleave."""
    name = f"rank {rank}"
    lines = (line if line.startswith(name) else f"{name}: {line}" for line in text.rstrip().splitlines())
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
