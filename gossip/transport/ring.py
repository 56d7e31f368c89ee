"""The mean of long vectors over a ring of hosts: each sends 2(n−1)/n of a vector, the least there is.

The vector is cut into n parts. In n−1 messages every part goes once around and the nodes add theirs; in n−1
more the means go around. Message k + 1 leaves a node when message k has come from the node before it
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, J. Parallel
Distrib. Comput. 69, 2009).

Why not MPI's: Open MPI's Iallreduce lets pairs of nodes exchange halves, then quarters, and so on, with
another node each time and both ways. On links of 5 Mbit/s among 8 hosts that took 1.6 to 2 times as long, of
20 Mbit/s 1 to 1.35 times (docs/netlab.md). But it takes 2 log₂ n messages one after the other in place of
2(n−1), which counts for short vectors, many nodes and fast networks. Inside one host, too, it is quicker: a
step of ResNet-20 by 3 % (4 ranks on 2 cores).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gossip.flat import even_parts

BYTES = 512
"""A ring serves from `BYTES` n² bytes on: with messages of 4 KiB among 8 nodes, for which it was measured,
and longer ones among more nodes, since more of them follow one another there."""


def serves(size: float, n: int) -> bool:
    """Whether the mean of `size` bytes over n nodes goes around a ring."""
    return n > 1 and size >= BYTES * n**2


class Ring:
    """Node `rank`'s side. The caller moves the messages, 0 … `messages` − 1 each way, in order.

    Args:
        own: this node's vector, float32 [d]; ends up as partial sums.
        mean: where the mean over the nodes goes, float32 [d]; the same bits on all nodes.
    """

    def __init__(
        self, own: npt.NDArray[np.float32], mean: npt.NDArray[np.float32], rank: int, n: int
    ) -> None:
        self._own, self._mean, self._rank, self._n = own, mean, rank, n
        self._parts = even_parts(own.size, n)
        self.messages = 2 * (n - 1)

    def _part(self, k: int) -> slice:
        """What this node sends as message k; the next node adds to it and sends it as its message k + 1."""
        return self._parts[(self._rank - k) % self._n]

    def outgoing(self, k: int) -> npt.NDArray[np.float32]:
        """Message k to the next node, once message k − 1 has been taken. Nobody writes to it any more."""
        return (self._own if k < self._n - 1 else self._mean)[self._part(k)]

    def incoming(self, k: int) -> npt.NDArray[np.float32]:
        """Where message k from the node before goes, once message k − 1 has come; it need not be taken yet.

        Messages k and k + n share a place.
        """
        return self._mean[self._part(k + 1)]

    def take(self, k: int) -> None:
        """Message k is in its place."""
        part = self._part(k + 1)
        if k < self._n - 1:
            self._own[part] += self._mean[part]
        if k == self._n - 2:
            np.divide(self._own[part], self._n, out=self._mean[part])
