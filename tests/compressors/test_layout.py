"""The byte layouts, read by decoders written from the docstrings alone, in float64 numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from compressors import QSGD, OneBit, RandK, Sign, TopK

pytestmark = pytest.mark.usefixtures("either_way")


def read_codes(data: bytes, n: int, width: int) -> list[int]:
    """Code by code, bit by bit: byte i of the m of a chunk of 512 holds its values i, i + m, ..."""
    codes, shift = [0] * n, 0
    while width >= 8:
        for i in range(n):
            codes[i] |= data[i] << shift
        data, width, shift = data[n:], width - 8, shift + 8
    for p in (4, 2, 1):
        if width & p:
            for start in range(0, n, 512):
                c = min(512, n - start)
                m = -(-c * p // 8)
                for i in range(c):
                    codes[start + i] |= (data[i % m] >> (i // m * p) & ((1 << p) - 1)) << shift
                data = data[m:]
            shift += p
    assert not data
    return codes


def qsgd(data: bytes, n: int, bits: int, s: int, block: int) -> NDArray[np.float64]:
    rows = -(-n // block)
    norms = np.frombuffer(data[: 4 * rows], "<f4").astype(np.float64)
    codes = np.array(read_codes(data[4 * rows :], n, bits), np.float64)
    unit = 2 * codes - 1 if bits == 1 else (codes - s) / s
    return unit * np.repeat(norms, block)[:n]


def vector(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


def same(decoded: Tensor, oracle: NDArray[np.float64]) -> bool:
    return np.allclose(decoded.double().numpy(), oracle, rtol=3e-7, atol=0)


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("n", [1, 13, 64, 1001])
def test_qsgd(n: int, bits: int, norm: str) -> None:
    codec = QSGD(bits=bits, norm=norm, block=64)
    x = vector(n)
    payload = codec.encode(x, key=2)
    oracle = qsgd(payload.numpy().tobytes(), n, bits, 2 ** (bits - 1) - 1, 64)
    assert same(codec.decode(payload, n), oracle)
    # every value went to one of the two levels around it
    scale = np.array(
        [
            np.linalg.norm(b, np.inf if norm == "max" else 2)
            for b in np.split(x.double().numpy(), range(64, n, 64))
        ]
    )
    step = np.repeat(scale, 64)[:n] * (2 if bits == 1 else 1 / (2 ** (bits - 1) - 1))
    assert np.all(np.abs(oracle - x.double().numpy()) <= step * (1 + 1e-5))


@pytest.mark.parametrize("levels", [1, 3, 7, 100, 255, 1000, 32767])
def test_qsgd_levels(levels: int) -> None:
    codec = QSGD(levels=levels, norm="l2", block="tensor")
    assert 2 ** (codec.bits - 1) < 2 * levels + 1 <= 2**codec.bits
    payload = codec.encode(vector(333), key=2)
    assert same(codec.decode(payload, 333), qsgd(payload.numpy().tobytes(), 333, codec.bits, levels, 333))


@pytest.mark.parametrize("n", [1, 13, 512, 1001])
def test_sign(n: int) -> None:
    x = vector(n)
    x[::7] = 0
    payload = Sign(block=100).encode(x, key=0)
    rows = -(-n // 100)
    data = payload.numpy().tobytes()
    ones = np.array(read_codes(data[4 * rows :], n, 1))
    means = np.frombuffer(data[: 4 * rows], "<f4").astype(np.float64)
    v = x.double().numpy()
    assert np.array_equal(ones, v >= 0)
    assert np.allclose(means, [np.abs(b).mean() for b in np.split(v, range(100, n, 100))], rtol=1e-6)
    oracle = np.where(ones == 1, 1, -1) * np.repeat(means, 100)[:n]
    assert same(Sign(block=100).decode(payload, n), oracle)


@pytest.mark.parametrize("n", [1, 13, 512, 1001])
def test_onebit(n: int) -> None:
    x = vector(n) + 0.3
    payload = OneBit(block=100).encode(x, key=0)
    rows = -(-n // 100)
    data = payload.numpy().tobytes()
    high, low = np.frombuffer(data[: 8 * rows], "<f4").astype(np.float64).reshape(2, rows)
    ones = np.array(read_codes(data[8 * rows :], n, 1))
    v = x.double().numpy()
    for i, b in enumerate(np.split(v, range(100, n, 100))):
        assert np.isclose(high[i], b[b >= 0].mean() if (b >= 0).any() else 0, rtol=1e-6)
        assert np.isclose(low[i], b[b < 0].mean() if (b < 0).any() else 0, rtol=1e-6)
    oracle = np.where(ones == 1, np.repeat(high, 100)[:n], np.repeat(low, 100)[:n])
    assert same(OneBit(block=100).decode(payload, n), oracle)


@pytest.mark.parametrize("threshold", ["exact", "sampled"])
@pytest.mark.parametrize("n", [1, 13, 1001, 5000])
def test_topk(n: int, threshold: str) -> None:
    codec = TopK(ratio=0.05, threshold=threshold)
    x = vector(n)
    payload = codec.encode(x, key=0)
    data = payload.numpy().tobytes()
    (count,) = struct.unpack("<I", data[:4])
    index = np.frombuffer(data[4 : 4 + 4 * count], "<u4")
    values = np.frombuffer(data[4 + 4 * count :], "<f4")
    v = x.numpy()
    assert 1 <= count <= max(1, round(0.05 * n)) and values.size == count
    assert set(index.tolist()) == set(np.argsort(-np.abs(v))[:count].tolist())
    oracle = np.zeros(n)
    oracle[index] = values
    assert same(codec.decode(payload, n), oracle)
    assert np.array_equal(values, v[index])


def test_randk_carries_its_seed() -> None:
    """The receiver finds the indices from the eight bytes of the message, not from the sender's key."""
    x = vector(1000)
    codec = RandK(ratio=0.1, scaled=False)
    payload = codec.encode(x, key=77)
    assert payload.numel() == 8 + 4 * 100
    other = codec.encode(x, key=78)
    assert not torch.equal(payload[:8], other[:8])
    decoded = codec.decode(payload, 1000)
    values = np.frombuffer(payload.numpy().tobytes()[8:], "<f4")
    sent = decoded.nonzero().view(-1)
    assert np.array_equal(decoded[sent].numpy(), values) and torch.equal(decoded[sent], x[sent])
