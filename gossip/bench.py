"""How long the compressors take beside a plain copy: ``python -m gossip bench codecs``.

Encode, decode and decode-and-add of each codec take turns with `copy_` of the same float32 vector and with a
textbook version in eager torch, so that what else the machine does hits all of them alike; medians are shown.
With one thread the clock is this process's CPU time, with more, and on a GPU, the wall clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compressors import CODECS, Compressor, kernels
from gossip.cli import positive_int
from gossip.errors import UsageError
from gossip.files import writing
from gossip.spec import make_codec

SIZES = (10**4, 10**5, 272_474, 10**6, 25 * 10**6)
"""272,474 values are ResNet-20's."""

SPECS = (
    *(name for name in CODECS if name != "threshold"),
    "threshold:3",  # one Gaussian value in 370; at the default nearly all would be sent
    "qsgd:bits=4",
    "topk:ratio=0.001,threshold=sampled",
)
"""What is timed by default: every codec as it is, and the variants that have a target."""

REPEATS = 9

REST = 0.02
"""Seconds until torch's threads sleep; for long messages with more than one thread."""

TARGETS = {
    "qsgd:bits=8": ("encode_ms", 4.0),
    "qsgd:bits=4": ("encode_ms", 4.0),
    "sign": ("encode_ms", 3.0),
    "topk:ratio=0.001,threshold=sampled": ("encode_ms", 5.0),
}
"""With one core and 25 M values encode may take so many copies; decode-and-add of qsgd and sign 3."""


@dataclass(frozen=True)
class Row:
    """One codec, size and number of threads: medians in ms; `textbook_*` where there is such code."""

    codec: str
    device: str
    threads: int
    values: int
    payload_bytes: int
    copy_ms: float
    encode_ms: float
    decode_ms: float
    decode_add_ms: float
    textbook_encode_ms: float | None
    textbook_decode_ms: float | None

    def gb_per_s(self, ms: float) -> float:
        """The vector's bytes over the time."""
        return 4e-6 * self.values / ms


# -- the textbook: what one would write first ----------------------------------------------------------


def textbook(codec: Compressor) -> tuple[Callable[[Tensor], object], Callable[[object, int], Tensor]] | None:
    """Encode and decode in eager torch for qsgd (max norm), terngrad, sign and topk; else None."""
    block = getattr(codec, "block", None)
    if not isinstance(block, int):
        return _topk(codec.ratio) if codec.name == "topk" else None  # type: ignore[attr-defined]
    if codec.name == "qsgd" and codec.norm == "max" and codec.bits in (2, 4, 8):  # type: ignore[attr-defined]
        return _levels((1 << (codec.bits - 1)) - 1, block)  # type: ignore[attr-defined]
    if codec.name == "terngrad":
        return _levels(1, block)
    return _sign(block) if codec.name == "sign" else None


def _rows(x: Tensor, block: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -len(x) % block)).view(-1, block)


def _levels(s: int, block: int) -> tuple[Callable[[Tensor], object], Callable[[object, int], Tensor]]:
    """Codes take a byte each, whatever the number of levels."""

    def encode(x: Tensor) -> object:
        rows = _rows(x, block)
        norm = rows.abs().amax(1, keepdim=True)
        q = torch.floor(rows / norm.clamp(min=1e-30) * s + torch.rand_like(rows))
        return norm, (q + s).to(torch.uint8)

    def decode(message: object, n: int) -> Tensor:
        norm, codes = message  # type: ignore[misc]
        return ((codes.to(torch.float32) - s) / s * norm).view(-1)[:n]  # type: ignore[has-type]

    return encode, decode


def _sign(block: int) -> tuple[Callable[[Tensor], object], Callable[[object, int], Tensor]]:
    def encode(x: Tensor) -> object:
        rows = _rows(x, block)
        weights = 2 ** torch.arange(8, dtype=torch.uint8, device=x.device)
        return rows.abs().mean(1, keepdim=True), (rows.ge(0).view(-1, 8) * weights).sum(1, dtype=torch.uint8)

    def decode(message: object, n: int) -> Tensor:
        mean, packed = message  # type: ignore[misc]
        shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)  # type: ignore[has-type]
        ones = packed[:, None].bitwise_right_shift(shifts).bitwise_and_(1)  # type: ignore[has-type]
        return ((ones.to(torch.float32) * 2 - 1).view(-1, block) * mean).view(-1)[:n]  # type: ignore[has-type]

    return encode, decode


def _topk(ratio: float) -> tuple[Callable[[Tensor], object], Callable[[object, int], Tensor]]:
    def encode(x: Tensor) -> object:
        index = torch.topk(x.abs(), max(1, round(ratio * len(x)))).indices
        return index, x[index]

    def decode(message: object, n: int) -> Tensor:
        index, values = message  # type: ignore[misc]
        return torch.zeros(n, device=values.device).index_copy_(0, index, values)  # type: ignore[has-type]

    return encode, decode


# -- measuring -------------------------------------------------------------------------------------------


def measure(spec: str, values: int, threads: int, device: str = "cpu", repeats: int = REPEATS) -> Row:
    """Time one codec on Gaussian values. Leaves torch's number of threads at `threads`."""
    torch.set_num_threads(threads)
    codec = make_codec(spec).for_segments((values,))
    x = torch.randn(values, generator=torch.Generator().manual_seed(0)).to(device)
    target, replica = torch.empty_like(x), torch.zeros_like(x)
    payload = codec.encode(x, 1)
    actions: dict[str, Callable[[], object]] = {
        "copy_ms": lambda: target.copy_(x),
        "encode_ms": lambda: codec.encode(x, 1),
        "decode_ms": lambda: codec.decode(payload, values),
        "decode_add_ms": lambda: codec.decode_add(payload, replica),
    }
    if book := textbook(codec):
        encode, decode = book
        message = encode(x)
        actions["textbook_encode_ms"] = lambda: encode(x)
        actions["textbook_decode_ms"] = lambda: decode(message, values)
    rest = REST if device == "cpu" and threads > 1 and values >= 10**6 else 0.0
    inner = max(1, 10**6 // max(values, 1) // 4)
    times = _in_turns(actions, _clock(threads, device), repeats, inner, rest)
    return Row(
        codec=spec,
        device=device,
        threads=threads,
        values=values,
        payload_bytes=payload.numel(),
        textbook_encode_ms=times.pop("textbook_encode_ms", None),
        textbook_decode_ms=times.pop("textbook_decode_ms", None),
        **times,
    )


def _clock(threads: int, device: str) -> Callable[[], float]:
    if device == "cpu":
        return time.process_time if threads == 1 else time.perf_counter

    def after_all_kernels() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return after_all_kernels


def _in_turns(
    actions: dict[str, Callable[[], object]],
    clock: Callable[[], float],
    repeats: int,
    inner: int,
    rest: float,
) -> dict[str, float]:
    """Median ms of each action; each is done `inner` times per turn, so that short ones can be timed.

    Before each they `rest`: torch's threads spin for some ms after their work, on the core that another
    thread of a codec is to have.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeats + 1):  # the first warms up
        for name, action in actions.items():
            time.sleep(rest)
            start = clock()
            for _ in range(inner):
                action()
            if turn:
                times[name].append((clock() - start) / inner * 1e3)
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


# -- the command -------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench codecs``."""
    parser.add_argument("what", choices=["codecs"], metavar="codecs", help="what to time")
    parser.add_argument(
        "--codec", action="append", metavar="SPEC", help="only this one; may be given again (default: all)"
    )
    parser.add_argument(
        "--sizes", type=_size, nargs="+", default=SIZES, metavar="N", help="values per message, e.g. 1e4 25e6"
    )
    parser.add_argument(
        "--threads", type=positive_int, nargs="+", metavar="T", help="numbers of threads (default: 1 and all)"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=positive_int, default=REPEATS, help="turns per row (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")


def run(args: argparse.Namespace) -> None:
    """Print the table while it is measured, then how the targets were met; write the JSON file.

    Raises:
        UsageError: the file cannot be written; said before anything is measured.
        WriteError: it cannot be written any more.
    """
    if args.json:
        try:
            args.json.open("ab").close()
        except OSError as error:
            raise UsageError(
                f"--json {args.json}: {error.strerror}. Give a file that can be written."
            ) from None
    threads = args.threads or sorted({1, torch.get_num_threads()})
    if args.device != "cpu":
        threads = threads[:1]
    print(f"{platform.platform()}, {os.cpu_count()} cores, torch {torch.__version__}, {kernels.status()}")
    print(header())
    rows = []
    for row in rows_of(args.codec or SPECS, args.sizes, threads, args.device, args.repeats):
        rows.append(row)
        print(line(row), flush=True)
    print("\n".join(verdicts(rows)))
    if args.json:
        facts = {**machine(), "rows": [asdict(row) for row in rows]}
        with writing(args.json):
            args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def rows_of(
    specs: Sequence[str], sizes: Sequence[int], threads: Sequence[int], device: str, repeats: int
) -> Iterator[Row]:
    """All combinations, largest messages last; puts torch's number of threads back."""
    before = torch.get_num_threads()
    try:
        for values in sizes:
            for spec in specs:
                for count in threads:
                    yield measure(spec, values, count, device, repeats)
    finally:
        torch.set_num_threads(before)


def header() -> str:
    """The head of the table; see `line`."""
    return (
        f"{'':48} |     copy |         encode         |         decode         |       decode-add       |"
        "      textbook\n"
        f"{'codec':34} {'values':>9} thr |       ms |       ms   GB/s  ×copy |       ms   GB/s  ×copy |"
        "       ms   GB/s  ×copy | enc ms   dec ms"
    )


def line(row: Row) -> str:
    """One row of the table. GB/s count the float32 values; × is the ratio to the copy."""
    cells = [
        f"{ms:8.3f} {row.gb_per_s(ms):6.1f} {ms / row.copy_ms:6.2f}"
        for ms in (row.encode_ms, row.decode_ms, row.decode_add_ms)
    ]
    books = [
        f"{ms:8.2f}" if ms is not None else f"{'–':>8}"
        for ms in (row.textbook_encode_ms, row.textbook_decode_ms)
    ]
    name = f"{row.codec:34} {row.values:9d} {row.threads:3d}"
    return " | ".join([name, f"{row.copy_ms:8.3f}", *cells, " ".join(books)])


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """How the rows that have a target did; nothing about those that were not measured."""
    largest = {(r.codec, r.threads): r for r in rows if r.values == SIZES[-1] and r.device == "cpu"}
    for (spec, threads), row in largest.items():
        for what, most in _targets(spec):
            if threads == 1:
                ratio = getattr(row, what) / row.copy_ms
                yield _verdict(f"{spec}: {what[:-3]}", ratio, f"≤ {most:g} copies", ratio <= most)
            elif one := largest.get((spec, 1)):
                gain = getattr(one, what) / getattr(row, what)
                least = 1.6 if threads == 2 else 1.0
                yield _verdict(
                    f"{spec}: {what[:-3]}, {threads} threads", gain, f"≥ {least:g} ×", gain >= least
                )
    quantizers = ("qsgd", *(spec for spec in TARGETS if spec.startswith("qsgd")))
    for row in rows:
        if row.device == "cpu":
            if row.values == 272_474 and row.threads == 1 and row.codec in quantizers:
                ms = row.encode_ms + row.decode_ms
                yield _verdict(f"{row.codec}: encode + decode of 272,474", ms, "≤ 1.5 ms", ms <= 1.5)
        elif row.values == SIZES[-1] and row.codec in (*quantizers, "sign"):
            moved = (4 * row.values + row.payload_bytes) / row.encode_ms
            share = moved / (8 * row.values / row.copy_ms)
            what = f"{row.codec}: encode on {row.device}, of the copy's bandwidth"
            yield _verdict(what, share, "≥ 0.6", share >= 0.6)


def _targets(spec: str) -> Iterator[tuple[str, float]]:
    name = "qsgd:bits=8" if spec == "qsgd" else spec
    if name in TARGETS:
        yield TARGETS[name]
        if not name.startswith("topk"):
            yield "decode_add_ms", 3.0


def _verdict(what: str, value: float, wanted: str, met: bool) -> str:
    return f"{'met   ' if met else 'MISSED'} {what}: {value:.2f} ({wanted})"


def machine() -> dict[str, Any]:
    """What the numbers of a benchmark depend on, as a JSON value."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "kernels": kernels.status().partition(" (")[0],
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for text in info.read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor()


def _size(text: str) -> int:
    value = float(text)
    if not (math.isfinite(value) and value >= 1 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text} given; a whole number of values fits, e.g. 1e6")
    return int(value)
