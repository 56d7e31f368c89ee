"""The parameter server's message: its layout, read by a decoder written from the docstring, and bad bytes."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from compressors import FP16, QSGD, Compressor, Identity, PayloadError
from compressors.keyed import Keyed, signature

KEYS = torch.tensor([0, 3, 17, 40])


def vector(n: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("values", [Identity(), FP16()], ids=str)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_layout(n: int, values: Compressor) -> None:
    codec = Keyed(values, 4)
    payload = codec.of(0xFFFFFFFE, KEYS).encode(vector(n), key=1)
    data = payload.numpy().tobytes()
    assert len(data) == codec.max_bytes(n) == 4 + 4 * 4 + (2 if values == FP16() else 4) * n
    stamp, *keys = struct.unpack("<5I", data[:20])
    assert stamp == codec.signature_of(payload) == 0xFFFFFFFE
    assert keys == codec.keys_of(payload, 41).tolist() == KEYS.tolist()
    sent = np.frombuffer(data[20:], "<f2" if values == FP16() else "<f4").astype(np.float32)
    assert np.array_equal(codec.decode(payload, n).numpy(), sent)


def test_values_go_through_the_codec_as_they_are() -> None:
    values, x, out = QSGD(bits=4, block=64), vector(200), vector(200)
    payload = Keyed(values).of(7).encode(x, key=3)
    decoded = values.decode(values.encode(x, key=3), 200)
    assert torch.equal(Keyed(values).decode(payload, 200), decoded)
    expected = out + decoded
    Keyed(values).decode_add(payload, out)
    assert torch.equal(out, expected)


def test_the_signature_is_the_crc_of_the_keys() -> None:
    assert signature(KEYS) == zlib.crc32(struct.pack("<4I", 0, 3, 17, 40))
    assert signature(KEYS[:0]) == zlib.crc32(b"")
    assert signature(KEYS) != signature(KEYS[:3]) != signature(KEYS + 1)


@pytest.mark.parametrize("length", [0, 3, 4, 19])
def test_a_message_that_ends_before_its_values_is_refused(length: int) -> None:
    codec, payload = Keyed(Identity(), 4), torch.zeros(length, dtype=torch.uint8)
    for read in (codec.signature_of, lambda p: codec.keys_of(p, 100), lambda p: codec.decode(p, 0)):
        with pytest.raises(PayloadError, match="20 bytes or more"):
            read(payload)


@pytest.mark.parametrize("n", [8, 10])
def test_values_of_another_number_are_refused(n: int) -> None:
    with pytest.raises(PayloadError):
        Keyed(Identity(), 4).decode(Keyed(Identity(), 4).of(0, KEYS).encode(vector(9), key=0), n)


@pytest.mark.parametrize("keys", [[0, 3, 3, 9], [5, 4, 6, 7], [-1, 0, 1, 2], [0, 1, 2, 10]])
def test_keys_out_of_order_or_out_of_range_are_refused(keys: list[int]) -> None:
    codec = Keyed(Identity(), 4)
    with pytest.raises(PayloadError, match=r"not strictly increasing within 0\.\.9"):
        codec.keys_of(codec.of(0, torch.tensor(keys)).encode(vector(1), key=0), 10)


@pytest.mark.parametrize("keys", [None, KEYS[:3]])
def test_as_many_keys_as_announced(keys: Tensor | None) -> None:
    with pytest.raises(ValueError, match="4 fit"):
        Keyed(Identity(), 4).of(0, keys)
