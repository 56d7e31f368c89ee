"""Tables and pictures from a results file: ``summary.md`` and the pictures of figures.py, beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from experiments.netlab import figures, findings, goodput
from experiments.netlab.findings import Verdict
from experiments.netlab.methods import LOCAL, METHODS
from experiments.netlab.results import Cell, Results, epoch_steps
from gossip.units import show_bandwidth, show_duration

SUMMARY = "summary.md"

LATE = "°"
"""Marks times for which the machine was too small."""


def write(results: Results) -> list[Path]:
    """Write everything that the results have numbers for; the files."""
    summary = results.folder / SUMMARY
    pictures = figures.draw(results)
    summary.write_text("\n".join(_summary(results, pictures)) + "\n", encoding="utf-8")
    return [summary, *pictures]


def files(folder: Path) -> list[Path]:
    """What `write` and the measurements write there, as far as it exists."""
    names = ("results.json", "log.txt", SUMMARY, *(f"{name}.png" for name in figures.PICTURES))
    return [folder / name for name in names if (folder / name).exists()]


def verdicts(results: Results) -> dict[str, list[Verdict]]:
    """All judgements, by heading."""
    found = _of_the_sweep(results) if results.cells else {}
    if results.goodput:
        found["Goodput"] = list(findings.goodput(results))
    return found


def _of_the_sweep(results: Results) -> dict[str, list[Verdict]]:
    return {
        "Tang et al.'s findings, without overlap (the paper's setting)": list(findings.paper(results, False)),
        "The same with overlap": list(findings.paper(results, True)),
        "Overlap": list(findings.overlap(results)),
        "torch DDP": list(findings.against_ddp(results)),
        "Planner": list(findings.planner(results)),
    }


def _summary(results: Results, pictures: Iterable[Path]) -> Iterator[str]:
    about = results.about
    yield "# The network laboratory\n"
    took = f"took {about['minutes']:.3g} minutes" if "minutes" in about else "broken off"
    yield f"`{about['command']}`, started {about['started']}, {took}.\n"
    yield (
        f"{about['cores']} cores, {about['platform']}, torch {about['torch']}; load before the start "
        f"{about['load']:.1f}; TCP: {about['congestion']}.\n"
    )
    if results.failed:
        yield "**Not measured:**\n"
        yield from (f"- {text}" for text in results.failed)
        yield ""
    for picture in pictures:
        yield f"![{picture.stem}]({picture.name})\n"
    for heading, found in verdicts(results).items():
        yield f"## {heading}\n"
        yield "| claim | | numbers |\n| --- | --- | --- |"
        yield from (f"| {v.claim} | {v.word} | {v.numbers} |" for v in found)
        yield ""
    if results.cells:
        yield from times(results)
    if results.goodput:
        yield "## Goodput: payload's share of the rate, neighbour exchange both ways on a ring\n"
        yield f"{about['goodput']}. Bold: {100 * goodput.TARGET:.0f} % or more.\n"
        yield from goodput.table(results.goodput)
        yield ""


def times(results: Results) -> Iterator[str]:
    """The tables of times and bytes per step."""
    about = results.about
    per_step = about["hosts"] * about["batch_size"]
    steps = epoch_steps(results)
    yield "## Time per step\n"
    yield (
        f"{about['hosts']} hosts on a ring. Computing: {about['compute']}. An epoch of CIFAR-10 is {steps} "
        f"steps of {per_step} images. ms; latency one way. {LATE}: more than {100 * findings.BUSY:.0f} % of "
        "the machine's cores were busy, and their queue counts too."
    )
    if about.get("jitter"):
        yield f"Every packet takes up to {about['jitter']} more."
    yield ""
    bandwidths = list(dict.fromkeys(b for b, _ in results.networks()))
    for overlap in (False, True):
        for latency in sorted({latency for _, latency in results.networks()}):
            yield f"### {'With' if overlap else 'Without'} overlap, {show_duration(latency)}\n"
            yield from _time_table(results, overlap, bandwidths, latency)
            yield ""
    yield "### Sent per step and host, MB (payload; on the interface with headers)\n"
    yield from _bytes_table(results)
    yield ""


def _time_table(
    results: Results, overlap: bool, bandwidths: Sequence[float], latency: float
) -> Iterator[str]:
    yield "| method | " + " | ".join(show_bandwidth(b) for b in bandwidths) + " |"
    yield "| --- |" + " ---: |" * len(bandwidths)
    for method in (LOCAL, *METHODS.values()):
        cells = [results.cell(method.key, overlap, bandwidth, latency) for bandwidth in bandwidths]
        if any(cells):
            yield f"| {method.label} | {' | '.join(map(_time, cells))} |"


def _time(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return f"{cell['step_ms']:.0f}" + LATE * (cell["cores_busy"] > findings.BUSY)


def _bytes_table(results: Results) -> Iterator[str]:
    network = results.networks()[-1]  # where the kernel cuts the frames; on fast ones many have one header
    yield f"On {findings.show(network)}.\n"
    yield "| method | payload | on the interface |\n| --- | ---: | ---: |"
    for method in METHODS.values():
        cell = results.cell(method.key, True, *network)
        if cell is not None:
            payload = f"{cell['bytes_sent'] / 1e6:.3f}" if "bytes_sent" in cell else "–"
            yield f"| {method.label} | {payload} | {cell['wire_bytes'] / 1e6:.3f} |"
