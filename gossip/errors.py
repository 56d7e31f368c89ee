"""Errors, each with the exit code of the job it ends.

Every message says what was given, what fits and what to type; `gossip.cli.run` prints it once per job.
"""

from __future__ import annotations


class GossipError(Exception):
    """Base of the framework's errors.

    Attributes:
        exit_code: of the job that it ends.
        second_hand: another rank has the cause, and will report it.
    """

    exit_code = 1
    second_hand = False


class UsageError(GossipError):
    """The user asked for something that cannot be done; the message says what to type instead."""

    exit_code = 2


class DivergedError(GossipError):
    """Training produced a non-finite value. Names the first rank and step that saw it.

    It ends the process's part in the job: sessions that are joined later would hear of it, too.
    """

    exit_code = 3


class WatchdogError(GossipError):
    """Nothing arrived for `timeout` seconds. Names this rank, the round, the bucket and whom it waits for."""


class PeerLostError(GossipError):
    """A rank that this one waits for has left the job."""

    second_hand = True


class DeadlockError(GossipError):
    """Every virtual node waits and no message is in flight: nothing will ever arrive."""


class CheckpointError(GossipError):
    """A checkpoint is missing, incomplete, or belongs to another run."""

    exit_code = 4


class WriteError(GossipError):
    """A file could not be written: the disk is full, a quota is reached, the folder is gone."""


class StaleKeysError(GossipError):
    """Two ranks hold different lists of the keys that a message leaves out. Names both, round and bucket."""
