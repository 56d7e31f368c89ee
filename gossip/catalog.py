"""Every algorithm, graph and compressor, with what it takes and what it fits: ``python -m gossip list``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator

import topologies
from compressors import CODECS, Compressor
from gossip.algorithms import ALGORITHMS, Algorithm
from gossip.spec import COMPRESSORS, GRAPHS, METHODS, REQUIRED, Kind, Option, as_typed, options, type_words
from topologies import FAMILIES, RULES, Topology, TopologyError

NODES = 8
"""Combinations are tried on a ring of this many nodes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``list``."""
    parser.add_argument("what", nargs="?", choices=PAGES, metavar="|".join(PAGES), help="only these")


def run(args: argparse.Namespace) -> None:
    """Print the page that was asked for, or all."""
    print("\n\n\n".join(catalog(what) for what in ([args.what] if args.what else PAGES)))


def catalog(plural: str) -> str:
    """The page for ``"algorithms"``, ``"topologies"`` (with the mixing weights) or ``"compressors"``."""
    kind, details = PAGES[plural]
    entries = [_entry(name, maker, details(name)) for name, maker in sorted(kind.makers.items())]
    if kind is GRAPHS:
        entries.append(_weight_rules())
    return "\n\n".join([f"{kind.plural.upper()} ({kind.flag} name:key=value,key=value)", *entries])


def _entry(name: str, maker: Callable[..., object], details: Iterator[str]) -> str:
    lines = [f"{name}: {_paragraphs(maker)[0]}"]
    lines += [f"    {_option_line(option)}" for option in options(maker)]
    lines += [f"    {line}" for line in details]
    return "\n".join(lines)


def _paragraphs(maker: Callable[..., object]) -> tuple[str, str]:
    """The first paragraph of the docstring, on one line, and the others as they are."""
    first, _, others = inspect.cleandoc(maker.__doc__ or "").partition("\n\n")
    return " ".join(first.split()), others


def _option_line(option: Option) -> str:
    if option.default is REQUIRED:
        value = f"{option.name}=… (must be given)"
    else:
        value = f"{option.name}={as_typed(option.default)}"
    return f"{value:<24} {option.help or type_words(option.type)}"


def _algorithm(name: str) -> Iterator[str]:
    method = ALGORITHMS[name]
    if method.paper:
        yield f"paper: {method.paper}"
    yield f"works on: {'the parameters' if method.kind == 'parameter' else 'the gradients'}"
    if not method.uses_graph:
        yield "topologies: not used"
    elif method.needs_symmetric:
        yield "topologies: fixed and undirected"
    else:
        yield "topologies: any, changing ones too"
    if not method.uses_compressor:
        yield f"compressors: not used, messages are {method.messages}"
        return
    warned = [codec for codec, words in _warnings(method) if words]
    own = method.default_compressor
    default = "" if own == "identity" else f"{own} unless one is named; "
    yield f"compressors: {default}all{', with a warning: ' + ', '.join(warned) if warned else ''}"


def _warnings(method: type[Algorithm]) -> Iterator[tuple[str, list[str]]]:
    """What the method itself says about each compressor at its defaults, on a ring."""
    ring = topologies.build("ring", NODES)
    for name, codec in _with_defaults():
        yield name, list(method().check(ring, codec))


def _with_defaults() -> Iterator[tuple[str, Compressor]]:
    """The compressors that need no option."""
    for name, codec in sorted(CODECS.items()):
        if all(option.default is not REQUIRED for option in options(codec)):
            yield name, codec()


def _topology(name: str) -> Iterator[str]:
    yield from _paragraphs(FAMILIES[name])[1].splitlines()
    try:
        graph = topologies.build(name, NODES)
    except TopologyError:
        return
    degree = graph.max_degree
    yield f"on {NODES} nodes: spectral gap {graph.spectral_gap:.3f}, messages per round at most {degree}"
    if not (isinstance(graph, Topology) and graph.is_symmetric):
        yield "algorithms: " + ", ".join(sorted(n for n, m in ALGORITHMS.items() if not m.needs_symmetric))
    else:
        yield "algorithms: all"


def _compressor(name: str) -> Iterator[str]:
    if CODECS[name].paper:
        yield f"paper: {CODECS[name].paper}"
    codec = dict(_with_defaults()).get(name)
    if codec is None:
        return
    d = 100_000
    kept = "exact" if codec.lossless else "unbiased" if codec.unbiased else "biased"
    bound = "" if codec.fixed_size else "at most "
    yield f"{kept}; {bound}{8 * codec.max_bytes(d) / d:.2f} bits per value of a message of {d}"
    compressing = {n: m for n, m in sorted(ALGORITHMS.items()) if m.uses_compressor}
    warned = [n for n, m in compressing.items() if list(m().check(topologies.build("ring", NODES), codec))]
    yield f"algorithms: {', '.join(compressing)}{'; with a warning: ' + ', '.join(warned) if warned else ''}"


def _weight_rules() -> str:
    lines = [f"{name}: {_paragraphs(rule)[0]}" for name, rule in RULES.items()]
    return "\n".join(["Mixing weights (--weights name)", *lines])


PAGES: dict[str, tuple[Kind, Callable[[str], Iterator[str]]]] = {
    "algorithms": (METHODS, _algorithm),
    "topologies": (GRAPHS, _topology),
    "compressors": (COMPRESSORS, _compressor),
}
