"""DGC's message: its layout, read by a decoder written from the docstring alone, and its runs."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from compressors import FP16, QSGD, Identity, LayerTopK, PayloadError
from compressors.layer_topk import ESCAPE, decode_runs, encode_runs

SIZES = (3, 1000, 1, 500)


def vector(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def read(data: bytes, value: str) -> dict[int, float]:
    """index -> value, word by word."""
    (count,) = struct.unpack("<I", data[:4])
    at, place, index = 4, 0, list[int]()
    while len(index) < count:
        (word,) = struct.unpack("<H", data[at : at + 2])
        at, place = at + 2, place + word
        if word != 65535:
            index.append(place)
            place += 1
    values = np.frombuffer(data[at:], value).astype(np.float64)
    assert len(values) == count
    return dict(zip(index, values, strict=True))


@pytest.mark.parametrize("threshold", ["exact", "sampled"])
@pytest.mark.parametrize("values", [Identity(), FP16()], ids=str)
def test_layout(values: Identity | FP16, threshold: str) -> None:
    codec = LayerTopK(0.02, threshold, values).for_segments(SIZES)
    x = vector(sum(SIZES))
    payload = codec.encode(x, key=5)
    sent = read(payload.numpy().tobytes(), "<f2" if values == FP16() else "<f4")
    decoded = codec.decode(payload, len(x))
    assert (
        sent == {i: float(decoded[i]) for i in sent}
        and not decoded[[i not in sent for i in range(1504)]].any()
    )
    start = 0
    for size in SIZES:  # the largest of each tensor by itself
        here = sorted(i - start for i in sent if start <= i < start + size)
        k = max(1, round(0.02 * size))
        assert len(here) == k if threshold == "exact" else 1 <= len(here) <= k
        part = x[start : start + size].abs()
        assert here == sorted(part.argsort(descending=True)[: len(here)].tolist())
        start += size


@pytest.mark.parametrize("first", [0, 1, 65_534, 65_535, 65_536, 131_069, 131_070, 131_071, 400_000])
@pytest.mark.parametrize("gap", [0, 1, 65_534, 65_535, 65_536, 196_605])
def test_runs_around_the_escape(first: int, gap: int) -> None:
    index = torch.tensor([first, first + 1 + gap])
    words = encode_runs(index)
    assert words.numel() == 2 + first // ESCAPE + gap // ESCAPE
    decoded, used = decode_runs(words.view(torch.uint8), 2)
    assert torch.equal(decoded, index) and used == 2 * words.numel()


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=30).map(sorted), st.binary(max_size=9))
@settings(max_examples=150, deadline=None)
def test_runs_of_any_indices(places: list[int], after: bytes) -> None:
    index = torch.tensor(places, dtype=torch.int64)
    words = encode_runs(index)
    data = torch.frombuffer(bytearray(words.numpy().tobytes() + after + b"x"), dtype=torch.uint8)
    decoded, used = decode_runs(data, len(places))
    assert decoded.tolist() == places and used == 2 * words.numel()
    most = LayerTopK(1.0).index_bytes(len(places), 10**6 + 1)
    assert used <= most


@pytest.mark.parametrize("values", [Identity(), FP16(), QSGD(bits=4)], ids=str)
@pytest.mark.parametrize("indices", ["runs", "uint32"])
def test_long_vectors_keep_to_max_bytes(indices: str, values: Identity | FP16 | QSGD) -> None:
    n = 300_000
    codec = LayerTopK(2 / n, "exact", values, indices)
    for places in ([0, 1], [0, n - 1], [n - 2, n - 1], [65_535, 131_071]):
        x = torch.zeros(n)
        x[places] = torch.tensor([1.0, -2.0])
        payload = codec.encode(x, key=1)
        assert payload.numel() <= codec.max_bytes(n)
        assert codec.decode(payload, n).nonzero().view(-1).tolist() == places


def test_both_forms_of_places_decode_alike() -> None:
    x = vector(1504)
    runs, plain = (LayerTopK(0.05, indices=i).for_segments(SIZES) for i in ("runs", "uint32"))
    a, b = runs.encode(x, 3), plain.encode(x, 3)
    assert torch.equal(runs.decode(a, 1504), plain.decode(b, 1504))
    assert b.numel() - a.numel() == 2 * int(a[:4].view(torch.int32))


def test_a_message_that_leads_out_of_the_vector_is_refused() -> None:
    codec = LayerTopK(0.01, "exact")
    x = torch.zeros(100)
    x[99] = 1
    payload = codec.encode(x, 0)
    assert codec.decode(payload, 100)[99] == 1
    payload[4:6].view(torch.int16).add_(1)
    with pytest.raises(PayloadError, match="index 100 of 100"):
        codec.decode(payload, 100)
    payload[4:6] = 255  # an escape, and then no end
    with pytest.raises(PayloadError):
        codec.decode(payload[:6], 100)
    with pytest.raises(PayloadError, match="announced"):
        codec.decode(torch.cat([torch.tensor([2, 0, 0, 0], dtype=torch.uint8), payload[4:]]), 100)


def test_sampling_keeps_nearly_all_that_exact_selection_would() -> None:
    """On average over keys 95 % of k and more, though k/100 of a small tensor is only one of its sample."""
    for n, ratio in ((5_000, 0.01), (200_000, 0.001), (1_000_000, 0.01)):
        x, codec = vector(n), LayerTopK(ratio)
        counts = [int(codec.encode(x, key)[:4].view(torch.int32)) for key in range(10)]
        assert max(counts) <= round(ratio * n) and sum(counts) / 10 >= 0.95 * ratio * n


@pytest.mark.parametrize("options", [{"ratio": 0.0}, {"threshold": "some"}, {"indices": "bits"}])
def test_options_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        LayerTopK(**options)  # type: ignore[arg-type]


def test_tensors_must_fill_the_vector() -> None:
    with pytest.raises(ValueError, match="1504"):
        LayerTopK().for_segments(SIZES).encode(vector(7), 0)
