"""Command lines under mpirun: a message once per job, not once per rank, and the exit code that it deserves.

A script makes its parser with `ArgumentParser` and ends with ``run(main)``.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from gossip import transport
from gossip.errors import GossipError, UsageError
from gossip.suggest import nearest
from gossip.transport.environment import env_rank, launched

PATIENCE = 5.0
"""Seconds that rank 0, if it has the same error, has to report it and end the job."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Call `main` and exit with what it returns; a `GossipError` becomes one message and its exit code.

    Other exceptions pass through, with their traceback. Warnings are one line each, without source code.
    """
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    try:
        code = main()
    except GossipError as error:
        _end_job(error)
    sys.exit(code)


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser for ranks: help and errors appear once, mistyped flags get a suggestion."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)  # a cut-off flag is a typing error, now and after new flags
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        near = self._meant(message)
        hint = f"\nDid you mean {near}?" if near else ""
        _end_job(UsageError(f"{self.prog}: {message}{hint}\nAll options: {self.prog} --help"))

    def _meant(self, message: str) -> str:
        """The flag or value that was probably meant, from argparse's own message; ``""`` if none is near."""
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return nearest(choice[1], re.findall(r"[\w-]+", choice[2]))
        if flag := re.search(r"unrecognized arguments:.*?(--[\w-]+)", message):
            subparsers = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
            parsers = [self, *(parser for action in subparsers for parser in action.choices.values())]
            return nearest(flag[1], [name for parser in parsers for name in parser._option_string_actions])
        return ""

    def _print_message(self, message: str, file: Any = None) -> None:
        if env_rank() == 0:
            super()._print_message(message, file)


def _end_job(error: GossipError) -> NoReturn:
    """Report `error` on one rank and end all of them.

    Mostly all ranks come here with the same error. Then rank 0 reports it and the others are ended while they
    wait; one that is still alive afterwards was alone with its error.
    """
    if launched() and transport.started():
        raise error  # MPI runs: the transport's excepthook reports it, and ends ranks that wait for this one
    rank = env_rank()
    if rank != 0:
        time.sleep(PATIENCE)
    print(f"rank {rank}: {error}" if rank else error, file=sys.stderr, flush=True)
    sys.exit(error.exit_code)


# -- types of numbers, for argparse --------------------------------------------------------------------------


def positive_int(text: str) -> int:
    """An argparse type."""
    return _number(text, int, lambda value: value > 0, "a whole number above 0")


def non_negative_int(text: str) -> int:
    """An argparse type."""
    return _number(text, int, lambda value: value >= 0, "a whole number, 0 or more")


def positive_float(text: str) -> float:
    """An argparse type."""
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def non_negative_float(text: str) -> float:
    """An argparse type."""
    return _number(text, float, lambda value: 0 <= value < float("inf"), "a number, 0 or more")


def fraction(text: str) -> float:
    """An argparse type."""
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 up to, but not including, 1")


Number = TypeVar("Number", int, float)


def _number(text: str, convert: Callable[[str], Number], fits: Callable[[Number], bool], what: str) -> Number:
    try:
        value = convert(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text} is not {what}")
    return value
