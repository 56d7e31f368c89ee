"""Dealing the training samples out to the nodes, once per run: alike (iid) or skewed by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from gossip.shard import check_split, seed_for
from gossip.spec import Kind


class Partition(Protocol):
    """A rule that deals samples to `n` nodes."""

    def deal(self, labels: np.ndarray, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Disjoint index arrays that cover all samples; their sizes differ by at most one."""
        ...


@dataclass(frozen=True)
class IID:
    """A random permutation, cut into n equal parts."""

    def deal(self, labels: np.ndarray, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        return np.array_split(rng.permutation(len(labels)), n)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: node i wants the K classes in shares p_i ~ Dir(alpha, ..., alpha).

    After Hsu et al. 2019 (arXiv 1909.06335). Small alpha: a node sees few classes; large alpha: like iid.
    All nodes get equally many samples, or one more, so all have the same number of steps. The shares bend
    where a class runs out. In rounds, every node that is not full asks for samples by its p_i over the
    classes that are left (by what is left, if it wants none of them); who gets the last samples of a class
    that is asked for too often is drawn at random.
    """

    alpha: float = field(metadata={"help": "concentration: 0.1 is strong skew, 100 is nearly iid"})

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ValueError(f"alpha={self.alpha:g}: it must be a number above 0")

    def deal(self, labels: np.ndarray, n: int, rng: np.random.Generator) -> list[np.ndarray]:
        _, classes, left = np.unique(labels, return_inverse=True, return_counts=True)
        room = np.array([len(range(i, len(labels), n)) for i in range(n)])
        wanted = rng.dirichlet(np.full(len(left), self.alpha), size=n)
        got = np.zeros((n, len(left)), np.int64)
        while room.any():  # a round fills all nodes or uses up a class
            shares = wanted * (left > 0)
            shares[shares.sum(1) < 1e-9] = left
            shares /= shares.sum(1, keepdims=True)
            asked = rng.multinomial(room, shares)
            for k in np.flatnonzero(asked.sum(0) > left).tolist():
                asked[:, k] = rng.multivariate_hypergeometric(asked[:, k], left[k])
            got += asked
            left = left - asked.sum(0)
            room = room - asked.sum(1)
        parts: list[list[np.ndarray]] = [[] for _ in range(n)]
        for k in range(got.shape[1]):
            members = rng.permutation(np.flatnonzero(classes == k))
            for part, share in zip(parts, np.split(members, np.cumsum(got[:-1, k])), strict=True):
                part.append(share)
        return [np.concatenate(part) for part in parts]


PARTITIONS: Mapping[str, Callable[..., Partition]] = {"iid": IID, "dirichlet": Dirichlet}

_KIND = Kind("partition", "", "--partition", PARTITIONS)


def split(labels: np.ndarray | Tensor, n: int, spec: str, seed: int) -> list[np.ndarray]:
    """Deal the samples with `labels` [N] to `n` nodes as `spec` says: ``iid`` or ``dirichlet:alpha=0.1``.

    A pure function of its arguments, so every rank computes the same parts without a message.

    Returns:
        `n` sorted int64 arrays, disjoint, that cover ``range(N)``; their sizes differ by at most one.

    Raises:
        UsageError: no such partition or option; fewer samples than nodes; a negative seed.
    """
    partition: Partition = _KIND.make(spec)
    labels = np.asarray(labels)
    check_split(len(labels), n, batch_size=1, seed=seed)
    rng = np.random.default_rng(seed_for("partition", seed))
    return [np.sort(part) for part in partition.deal(labels, n, rng)]
