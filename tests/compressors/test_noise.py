"""The noise of the codecs: uniform, without correlation between places, keys, steps or ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from compressors import kernels
from compressors.noise import derive_key, key_words, random_words, rounding_noise
from gossip.effects import message_key

pytestmark = pytest.mark.usefixtures("either_way")

N = 1 << 18
KEYS = (0, 1, 1 << 63, 0x9E3779B97F4A7C15, (1 << 64) - 1)
NEIGHBOURS = {
    "keys that differ in one bit": [0, *(1 << bit for bit in range(64))],
    "keys in a row": list(range(64)),
    "steps": [message_key(0, 3, t, 0, 0) for t in range(64)],
    "ranks": [message_key(0, rank, 7, 0, 0) for rank in range(64)],
    "inner uses": [derive_key(5, i) for i in range(64)],
}


def uniform(key: int, n: int = N, start: int = 0) -> NDArray[np.float64]:
    """The words as numbers in [0, 1)."""
    return (random_words(n, key, start=start).numpy().view(np.uint32) / 2.0**32).astype(np.float64)


def correlations(u: NDArray[np.float64], v: NDArray[np.float64]) -> float:
    """The correlation coefficient, in standard errors."""
    return float(np.corrcoef(u, v)[0, 1] * np.sqrt(u.size))


@pytest.mark.parametrize("key", KEYS)
def test_mean_variance_and_uniformity(key: int) -> None:
    u = uniform(key)
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / N) ** 0.5
    assert abs(u.var() - 1 / 12) < 4 * (1 / 180 / N) ** 0.5
    for cells in (256, 4096):  # chi^2 of the highest bits has mean cells - 1, variance 2 (cells - 1)
        counts = np.bincount((u * cells).astype(int), minlength=cells)
        chi2 = ((counts - N / cells) ** 2 / (N / cells)).sum()
        assert abs(chi2 - (cells - 1)) < 4 * (2 * (cells - 1)) ** 0.5
    low = random_words(N, key).numpy().view(np.uint32) & 255  # natural uses low bits
    counts = np.bincount(low, minlength=256)
    assert abs(((counts - N / 256) ** 2 / (N / 256)).sum() - 255) < 4 * (2 * 255) ** 0.5


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_a_fair_coin(key: int) -> None:
    words = random_words(N, key).numpy().view(np.uint32)
    for bit in range(32):
        ones = int((words >> np.uint32(bit) & 1).sum())
        assert abs(ones - N / 2) < 4.5 * (N / 4) ** 0.5


@pytest.mark.parametrize("key", KEYS)
def test_places_are_uncorrelated(key: int) -> None:
    """Neighbouring values, the same places of neighbouring blocks, far ones; linear, and in cells."""
    u = uniform(key)
    for lag in (1, 2, 3, 7, 64, 511, 512, 513, 4096, 1 << 17):
        assert abs(correlations(u[:-lag], u[lag:])) < 4.5
        cells = (u[:-lag] * 16).astype(int) * 16 + (u[lag:] * 16).astype(int)
        counts = np.bincount(cells, minlength=256)
        expected = (u.size - lag) / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 4.5 * (2 * 255) ** 0.5


@pytest.mark.parametrize("keys", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_keys_are_uncorrelated(keys: list[int]) -> None:
    """All pairs of 64 keys: their correlations, in standard errors, are standard normal."""
    assert len(set(keys)) == len(keys) == len({key_words(key) for key in keys})
    n = 1 << 14
    u = np.stack([uniform(key, n) for key in keys])
    for v in (u, (u - 0.5) ** 2, np.sign(u - 0.5)):
        z = (np.corrcoef(v) * np.sqrt(n))[np.triu_indices(len(keys), 1)]
        assert np.abs(z).max() < 5.5
        assert abs(z.mean()) < 4 / np.sqrt(z.size)
        assert abs(z.var() - 1) < 4 * np.sqrt(2 / z.size)


def test_no_two_keys_share_a_stretch_of_noise() -> None:
    """Not even shifted: no run of two words of one key occurs in another's."""
    seen: set[int] = set()
    for key in range(40):
        words = random_words(10_000, key).numpy().view(np.uint32).astype(np.uint64)
        pairs = (words[:-1] << np.uint64(32) | words[1:]).tolist()
        assert seen.isdisjoint(pairs)
        seen.update(pairs)


def test_a_word_depends_on_its_key_and_place_only() -> None:
    whole = random_words(N, 7)
    for start, n in ((0, 0), (0, 1), (1, 3), (511, 514), (N - 3, 3)):
        assert torch.equal(random_words(n, 7, start=start), whole[start : start + n])
    with kernels.disabled():
        assert torch.equal(random_words(N, 7), whole)
    state = torch.get_rng_state()
    random_words(5, 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_definition() -> None:
    """The docstring's formula, in Python's integers."""
    mask = (1 << 32) - 1

    def mix(h: int) -> int:
        h = (h ^ h >> 16) * 0x7FEB352D & mask
        h = (h ^ h >> 15) * 0x846CA68B & mask
        return h ^ h >> 16

    for key in KEYS:
        key0, key1 = key_words(key)
        for i in (0, 1, 511, 99_999):
            assert int(random_words(1, key, start=i)[0]) & mask == mix(mix(i + key0 & mask) ^ key1)


def test_rounding_noise_is_centred() -> None:
    u = rounding_noise(N, key=3)
    assert -0.5 <= float(u.min()) < -0.4999 and 0.4999 < float(u.max()) <= 0.5
    assert abs(float(u.double().mean())) < 4 * (1 / 12 / N) ** 0.5
