"""Time-varying topologies: another mixing matrix in every round."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from topologies.errors import TopologyError
from topologies.matrix import MixingMatrix, spectral_radius


@dataclass(frozen=True, eq=False)
class Schedule:
    """A cycle of mixing matrices: round t (from 1) mixes with rounds[(t - 1) % period].

    A single round need not connect all nodes, the cycle must. Being data, it is a pure function of t on every
    rank; a random family draws its rounds from its seed when it is built.

    Raises TopologyError when there are no rounds, their sizes differ, or the cycle does not reach consensus.
    """

    name: str
    rounds: tuple[MixingMatrix, ...] = field(repr=False)

    is_static: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", tuple(self.rounds))
        sizes = sorted({matrix.size for matrix in self.rounds})
        if len(sizes) != 1:
            raise TopologyError(
                f"{self.name}: a schedule needs one or more rounds of one size, given {sizes}"
            )
        if self.spectral_gap < 1e-12:
            raise TopologyError(
                f"{self.name}: the {self.period} rounds of the schedule together never reach consensus;"
                " add rounds that join all ranks"
            )

    def __reduce__(self) -> tuple[type, tuple[str, tuple[MixingMatrix, ...]]]:
        return type(self), (self.name, self.rounds)

    @property
    def size(self) -> int:
        """n, the number of nodes."""
        return self.rounds[0].size

    @property
    def period(self) -> int:
        """The number of rounds after which the schedule repeats."""
        return len(self.rounds)

    def at(self, t: int) -> MixingMatrix:
        """The mixing matrix of round t; rounds count from 1."""
        if t < 1:
            raise TopologyError(f"{self.name}: there is no round {t}; rounds count from 1")
        return self.rounds[(t - 1) % self.period]

    @property
    def max_degree(self) -> int:
        """The most messages that any node sends or receives in one round."""
        return max(matrix.max_degree for matrix in self.rounds)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether W is symmetric in every round."""
        return all(matrix.is_symmetric for matrix in self.rounds)

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether every round keeps the average of all nodes."""
        return all(matrix.is_doubly_stochastic for matrix in self.rounds)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - rho^(1/period), rho of the whole cycle's product: the gap of a static W that mixes as fast."""
        product = reduce(lambda done, matrix: matrix.W @ done, self.rounds[1:], self.rounds[0].W)
        rho = spectral_radius(np.linalg.eigvals(product))
        # Below this rho is rounding noise, which the root would blow up: the cycle averages exactly.
        return 1.0 - rho ** (1 / self.period) if rho > 1e-12 else 1.0

    def fingerprint(self) -> str:
        """Hex sha256 of the rounds' fingerprints, in order: the same on every platform."""
        return hashlib.sha256("".join(matrix.fingerprint() for matrix in self.rounds).encode()).hexdigest()
