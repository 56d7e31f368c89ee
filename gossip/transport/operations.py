"""What the requests of an MPI transport are for: `gossip/transport/mpi.py` starts them and sees them end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gossip.transport import ring
from gossip.transport.base import Wake
from gossip.transport.staging import Staged, host_empty

NOTE_BYTES = 1 << 20  # the longest note; a last word takes about 15 bytes per tag
RING_TAGS = 1 << 15  # so many tags every MPI has; the means on a ring take one each, in turn


class Operation:
    """What an active request is for.

    `finish` runs once, when it has ended well, inside `poll` and under the lock. `length` in bytes and
    `sender` are those of a message that was received, and say nothing otherwise.
    """

    done = False
    in_the_way = True  # of leaving; receives of payloads and notes are not, they are cancelled
    wake: Wake | None = None

    @property
    def collective(self) -> Collective | None:
        """Which this belongs to."""
        return None

    def finish(self, length: int, sender: int) -> None:
        self.done = True


class Send(Operation):
    def __init__(self, payload: Staged, to: int, tag: int) -> None:
        self.staged, self.peer, self.tag = payload, to, tag
        self.size = payload.host.numel()
        self.began = 0.0  # when it was put on the wire


class Receive(Operation):
    in_the_way = False

    def __init__(self, frm: int, tag: int, max_bytes: int) -> None:
        self.peer, self.tag = frm, tag
        self.buffer = host_empty([max_bytes], torch.uint8)

    def finish(self, length: int, sender: int) -> None:
        self.buffer = self.buffer[:length]
        self.done = True

    def payload(self) -> Tensor:
        return self.buffer


class Discard(Operation):
    """A message that came for a rank which is leaving."""

    def __init__(self, length: int) -> None:
        self.data = np.empty(length, np.uint8)


class NoteSend(Operation):
    def __init__(self, peer: int, data: np.ndarray) -> None:
        self.peer, self.data = peer, data


class NoteReceive(Operation):
    in_the_way = False

    def __init__(self) -> None:
        self.data = np.empty(NOTE_BYTES, np.uint8)
        self.sender = -1

    def finish(self, length: int, sender: int) -> None:
        self.data = self.data[:length]
        self.sender = sender


class Collective(Operation):
    """The `index`-th collective on `channel`, counted from 1."""

    def __init__(self, channel: int, index: int) -> None:
        self.channel, self.index = channel, index

    @property
    def collective(self) -> Collective:
        return self


class Mean(Collective):
    """`staged` is a copy of this rank's vector; `mean` is where the mean goes."""

    def __init__(self, staged: Staged, device: torch.device, size: int, channel: int, index: int) -> None:
        super().__init__(channel, index)
        self.staged, self.device, self.size = staged, device, size
        self.mean = host_empty(staged.host.shape, torch.float32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """This rank's vector and the mean, float32 [d]."""
        return self.staged.host.numpy().reshape(-1), self.mean.numpy().reshape(-1)

    def value(self) -> Tensor:
        return self.mean.to(self.device, non_blocking=True)


class ShortMean(Mean):
    """A mean that MPI takes."""

    def finish(self, length: int, sender: int) -> None:
        self.mean /= self.size
        self.done = True


class RingMean(Mean):
    """A mean that goes around the ring; done when no message is `missing`, sent or received."""

    def __init__(
        self, staged: Staged, device: torch.device, size: int, channel: int, index: int, rank: int
    ) -> None:
        super().__init__(staged, device, size, channel, index)
        self.ring = ring.Ring(*self.arrays(), rank, size)
        self.missing = 2 * self.ring.messages
        self.tag = index % RING_TAGS


class Part(Operation):
    """Message k of a mean on the ring, to or from `peer`."""

    def __init__(self, mean: RingMean, k: int, peer: int) -> None:
        self.mean, self.k, self.peer = mean, k, peer

    @property
    def collective(self) -> Collective:
        return self.mean


class PartSend(Part):
    """To the rank after this one."""


class PartReceive(Part):
    """From the rank before this one. One at a time is posted, for MPI reports completions in any order."""


class MeanOfOne(Operation):
    done = True

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def value(self) -> Tensor:
        return self.x
