"""The mixing matrix W and what can be asked of it; a Topology is one that mixes by itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import networkx as nx
import numpy as np
import numpy.typing as npt

from topologies.errors import TopologyError, unknown
from topologies.weights import RULES

Matrix = npt.NDArray[np.float64]

TOLERANCE = 1e-9  # on row sums, column sums and symmetry


def spectral_radius(eigenvalues: npt.NDArray[Any]) -> float:
    """rho = max |l_i| over the eigenvalues of W other than its eigenvalue 1; 0 for one node."""
    others = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues - 1)))
    return float(np.abs(others).max(initial=0.0))


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """The weights of one exchange: x_i <- sum_j W_ij x_j. Immutable; compared by identity.

    name: what messages call it.
    W: float64 [n, n], read-only; W[i, j] is the weight that node i gives to what it receives from j.
       Node j is an in-neighbour of i when j != i and W[i, j] != 0.

    Raises TopologyError unless W is square, real, finite and its rows sum to 1 (within 1e-9).
    """

    name: str
    W: Matrix = field(repr=False)

    def __post_init__(self) -> None:
        try:
            W = np.asarray(self.W)
        except ValueError as error:
            raise TopologyError(f"{self.name}: W is not a matrix: {error}") from None
        if W.ndim != 2 or W.shape[0] != W.shape[1] or W.size == 0:
            raise TopologyError(f"{self.name}: W has shape {W.shape}; it must be square, one row per rank")
        if W.dtype.kind not in "fiu":
            raise TopologyError(f"{self.name}: W holds {W.dtype} values; they must be real numbers")
        # The sum copies, and makes -0.0 and 0.0 one value: equal matrices have equal fingerprints.
        W = W.astype(np.float64) + 0.0
        if not np.isfinite(W).all():
            i, j = np.argwhere(~np.isfinite(W))[0]
            raise TopologyError(f"{self.name}: W[{i}, {j}] is {W[i, j]}; every weight must be finite")
        sums = W.sum(axis=1)
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) > TOLERANCE:
            raise TopologyError(
                f"{self.name}: row {worst} of W sums to {float(sums[worst])!r}, but must sum to 1 (within"
                f" {TOLERANCE:g}); write all digits of the weights, or give the graph and let a rule weigh it"
            )
        W.setflags(write=False)
        object.__setattr__(self, "W", W)

    def __reduce__(self) -> tuple[type, tuple[str, Matrix]]:
        # Built anew when unpickled: numpy's own pickles come back writable.
        return type(self), (self.name, self.W)

    @property
    def size(self) -> int:
        """n, the number of nodes."""
        return int(self.W.shape[0])

    def in_neighbors(self, rank: int) -> tuple[int, ...]:
        """The ranks that `rank` receives from, ascending."""
        return self._in_neighbors[self._checked(rank)]

    def out_neighbors(self, rank: int) -> tuple[int, ...]:
        """The ranks that `rank` sends to, ascending."""
        return self._out_neighbors[self._checked(rank)]

    def weights(self, rank: int) -> dict[int, float]:
        """W[rank, j] by j, ascending: the in-neighbours and `rank` itself (whose own weight may be 0)."""
        row = self.W[self._checked(rank)]
        return {j: float(row[j]) for j in sorted((rank, *self._in_neighbors[rank]))}

    @property
    def max_degree(self) -> int:
        """The most messages that any node sends or receives in one exchange."""
        return max(map(len, self._in_neighbors + self._out_neighbors))

    @cached_property
    def is_symmetric(self) -> bool:
        """W = W^T, within 1e-9."""
        return bool((np.abs(self.W - self.W.T) <= TOLERANCE).all())

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """The columns sum to 1 as well (within 1e-9), so mixing keeps the average of all nodes."""
        return bool((np.abs(self.W.sum(axis=0) - 1) <= TOLERANCE).all())

    @cached_property
    def spectral_gap(self) -> float:
        """1 - rho, rho = max(|l_2|, |l_n|): the share of the consensus distance that one exchange removes."""
        return 1.0 - spectral_radius(self._eigenvalues)

    @cached_property
    def mu(self) -> float:
        """max_i |l_i - 1|, which bounds the compression noise that DCD-PSGD tolerates (arXiv 1803.06443)."""
        return float(np.abs(self._eigenvalues - 1).max())

    def fingerprint(self) -> str:
        """Hex sha256 of W as little-endian float64 in row order: the same on every platform."""
        return hashlib.sha256(self.W.astype("<f8").tobytes()).hexdigest()

    @cached_property
    def _eigenvalues(self) -> npt.NDArray[Any]:
        return np.linalg.eigvalsh(self.W) if self.is_symmetric else np.linalg.eigvals(self.W)

    @cached_property
    def _in_neighbors(self) -> tuple[tuple[int, ...], ...]:
        return _nonzero(self.W)

    @cached_property
    def _out_neighbors(self) -> tuple[tuple[int, ...], ...]:
        return _nonzero(self.W.T)

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise TopologyError(f"{self.name} has no rank {rank}; its ranks are 0 to {self.size - 1}")
        return rank


def _nonzero(W: Matrix) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(j) for j in np.flatnonzero(row) if j != i) for i, row in enumerate(W))


@dataclass(frozen=True, eq=False)
class Topology(MixingMatrix):
    """A mixing matrix that is used in every round, and reaches consensus by itself.

    Raises TopologyError when MixingMatrix does, when its graph is not strongly connected, or when rho >= 1
    (a cycle of zero own weights, or weights so negative that mixing diverges).
    """

    is_static: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_connected()
        # By Perron-Frobenius, non-negative weights on a connected graph with one own weight above 0 mix.
        if (self.W >= 0).all() and (self.W.diagonal() > 0).any():
            return
        if self.spectral_gap < 1e-12:
            raise TopologyError(
                f"{self.name}: W never reaches consensus, its rho is {1 - self.spectral_gap:.6g} and must be"
                " below 1; give the nodes a positive own weight, for example use (I + W)/2"
            )

    @classmethod
    def from_graph(cls, graph: nx.Graph, weights: str = "metropolis", name: str = "graph") -> Topology:
        """The topology of any networkx graph whose weights come from the rule `weights` (a key of RULES).

        Nodes labelled 0 … n-1 are the ranks; other labels become ranks in the graph's own order of nodes.
        Self-loops and edge attributes mean nothing here: own weights and edge weights come from the rule.
        """
        if weights not in RULES:
            raise unknown("weight rule", weights, RULES)
        if not graph:
            raise TopologyError(f"{name}: the graph has no nodes")
        try:
            W = RULES[weights](as_ranks(graph))
        except TopologyError as error:
            raise TopologyError(f"{name}: {error}") from None
        return cls(name, W)

    def at(self, t: int) -> Topology:
        """The mixing matrix of round t: always this one."""
        return self

    def _check_connected(self) -> None:
        edges = nx.DiGraph((j, i) for i in range(self.size) for j in self._in_neighbors[i])
        edges.add_nodes_from(range(self.size))
        for cut_off, how in (
            (set(edges) - nx.descendants(edges, 0) - {0}, "hears nothing from"),
            (set(edges) - nx.ancestors(edges, 0) - {0}, "sends nothing to"),
        ):
            if cut_off:
                raise TopologyError(
                    f"{self.name}: the graph is not connected: rank {min(cut_off)} {how} rank 0, not even"
                    f" through others; add edges that join the {len(cut_off)} of {self.size} ranks cut off"
                )


def as_ranks(graph: nx.Graph) -> nx.Graph:
    """A plain copy of `graph` on the nodes 0 … n-1, without self-loops, parallel edges and attributes."""
    numbered = set(graph) == set(range(len(graph)))
    ranks = {node: node if numbered else place for place, node in enumerate(graph)}
    plain: nx.Graph = nx.DiGraph() if graph.is_directed() else nx.Graph()
    plain.add_nodes_from(range(len(graph)))
    plain.add_edges_from((ranks[i], ranks[j]) for i, j in graph.edges() if i != j)
    return plain
