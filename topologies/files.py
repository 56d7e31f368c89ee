"""Graphs and mixing matrices from files."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import numpy.typing as npt

from topologies.errors import TopologyError
from topologies.registry import family

# What the readers below raise on malformed text.
PARSE_ERRORS = (
    *(ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile),
    *(nx.NetworkXException, ElementTree.ParseError),
)


@family("file")
def file(n: int, *, path: str) -> nx.Graph | npt.NDArray[np.float64]:
    """A graph from .adjlist, .edgelist or .graphml, or the matrix W itself from .npy or .csv.

    Graphs are read by networkx (adjacency and edge lists as undirected, edge weights unused) and weighed by
    the rule. Whole-number labels are ranks and must be 0 … n-1; other labels become ranks in order of
    appearance. W[i, j] is the weight that rank i gives to what it receives from j; a line of .csv is a row.
    """
    where = Path(path).expanduser()
    if where.suffix not in READERS:
        fits = ", ".join(READERS)
        raise TopologyError(
            f"file:{path}: its ending does not tell what it holds; rename it to one of {fits}"
        )
    try:
        made = READERS[where.suffix](where)
    except OSError as error:
        raise TopologyError(f"file:{path} cannot be read: {error.strerror or error}") from None
    except PARSE_ERRORS as error:
        raise TopologyError(f"file:{path} is not a valid {where.suffix} file: {error}") from None
    if not isinstance(made, np.ndarray):
        made = _labels_to_ranks(made, path)
    elif made.size and made.ndim != 2:
        raise TopologyError(
            f"file:{path} holds an array of shape {made.shape}; W is a square matrix, one row per rank"
        )
    if not len(made):
        raise TopologyError(f"file:{path} holds no nodes; give it one for each of the {n} ranks")
    if len(made) != n:
        raise TopologyError(
            f"file:{path} has {len(made)} nodes, given {n} ranks: start {len(made)} ranks or use another file"
        )
    return made


def _labels_to_ranks(graph: nx.Graph, path: str) -> nx.Graph:
    whole = [label for label in graph if re.fullmatch(r"[+-]?[0-9]+", label)]
    if not whole:
        return nx.convert_node_labels_to_integers(graph)
    if len(whole) < len(graph):
        name = next(label for label in graph if label not in whole)
        raise TopologyError(
            f"file:{path} has numbers ({whole[0]}) and names ({name}) as labels: take one or the other"
        )
    numbers = sorted(map(int, graph))
    if numbers != list(range(len(graph))):
        wrong = next((label for label in numbers if not 0 <= label < len(graph)), numbers[0])
        raise TopologyError(
            f"file:{path} has {len(graph)} nodes but one is numbered {wrong}; number them from 0 to"
            f" {len(graph) - 1}"
        )
    return nx.relabel_nodes(graph, {label: int(label) for label in graph})


def _npy(path: Path) -> npt.NDArray[np.float64]:
    return np.atleast_1d(np.load(path, allow_pickle=False))


def _csv(path: Path) -> npt.NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "no data": the caller says it
        return np.loadtxt(path, delimiter=",", ndmin=2)


def _edgelist(path: Path) -> nx.Graph:
    return nx.read_edgelist(path, nodetype=str, data=False)


READERS: dict[str, Callable[[Path], nx.Graph | npt.NDArray[np.float64]]] = {
    ".adjlist": nx.read_adjlist,
    ".edgelist": _edgelist,
    ".graphml": nx.read_graphml,
    ".npy": _npy,
    ".csv": _csv,
}
