"""The CUDA kernels' source, run by Triton's interpreter on the CPU, where Triton is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from compressors import QSGD, MinMax, Natural, OneBit, Sign, TernGrad, gpu
from compressors.blocks import block_shape
from compressors.packing import from_bytes
from compressors.rows import RowCodec

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="for machines with Triton and without a GPU",
)

CODECS: list[RowCodec] = [
    *(QSGD(bits=bits) for bits in (1, 3, 4, 7, 8, 16)),
    QSGD(levels=255, norm="l2"),
    QSGD(block=100),
    QSGD(block="tensor"),
    TernGrad(),
    MinMax(),
    MinMax(rounding="nearest"),
    Natural(),
    Sign(),
    Sign(block=64),
    OneBit(),
]


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    gpu._kernels.cache_clear()
    sys.modules.pop("compressors._triton", None)
    yield
    gpu._kernels.cache_clear()
    sys.modules.pop("compressors._triton", None)


def gaussian(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("interpreter")
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_same_bytes_as_on_the_cpu(codec: RowCodec) -> None:
    n = 7 * 512 + 100
    for x in (gaussian(n), gaussian(n) * 1e-38, (gaussian(n) ** 7 * 1e30).clamp(-3e38, 3e38)):
        expected = codec.encode(x, key=9)
        rows, columns = block_shape(n, codec.block)
        size = 4 * codec.stat.tables * rows
        payload = expected.clone()  # what the kernel has to write is spoilt first
        fused = gpu.fuses(codec.stat, columns)
        payload[: 4 * (n // 512) if fused else 0] ^= 255
        payload[size : size + n // 512 * 64] ^= 255
        whole = gpu.encode(x, payload, columns, codec.stat, codec.rule, 9, fused)
        assert whole == 7 * 512 and torch.equal(payload, expected)

        tables = from_bytes(expected[:size], torch.float32).view(codec.stat.tables, rows)
        for add, alpha in ((False, 1.0), (True, 1.0), (True, 0.3)):
            out = gaussian(n, seed=1)
            reference = out.clone() if add else codec.decode(expected, n)
            if add:
                codec.decode_add(expected, reference, alpha)
            gpu.decode(expected[size:], tables, out, columns, codec.rule, alpha, add)
            assert torch.equal(out[:whole].view(torch.int32), reference[:whole].view(torch.int32))
