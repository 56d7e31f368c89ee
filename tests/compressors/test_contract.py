"""The laws of compressors/base.py, over every registered codec and its options.

A new codec is tested by being registered; options worth their own run go into VARIANTS. All laws are tested
with the C kernels and without them.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from compressors import (
    BF16,
    CODECS,
    FP16,
    QSGD,
    Compressor,
    Grid,
    Identity,
    MinMax,
    NonFiniteError,
    OneBit,
    PayloadError,
    PerTensor,
    RandK,
    Sign,
    TernGrad,
    Threshold,
    TopK,
    kernels,
    register,
    relative_error,
)

pytestmark = pytest.mark.usefixtures("either_way")

VARIANTS: list[Compressor] = [
    *(QSGD(bits=b) for b in (1, 2, 3, 4, 5, 6, 7, 16)),
    *(QSGD(bits=b, norm="l2", block=64) for b in (1, 2, 4, 8, 16)),
    QSGD(levels=7),
    QSGD(levels=255, norm="l2", block="tensor"),
    QSGD(bits=4, block=1),
    MinMax(rounding="nearest"),
    MinMax(block="tensor"),
    Grid(step=0.25),
    Grid(step=1e-4, block=7),
    Grid(block="tensor"),
    TernGrad(clip=2.5),
    TernGrad(block="tensor"),
    TernGrad(clip=2.5, block="tensor"),
    Sign(block="tensor"),
    Sign(block=7),
    OneBit(block="tensor"),
    OneBit(block=100),
    TopK(ratio=0.1),
    TopK(ratio=1.0),
    TopK(ratio=0.1, threshold="sampled"),
    TopK(ratio=0.1, values=FP16()),
    TopK(ratio=0.1, values=QSGD(bits=4, block=64)),
    TopK(ratio=0.1, values=Grid()),
    TopK(ratio=0.3, threshold="sampled", values=QSGD(bits=3)),
    Threshold(value=1.0),
    Threshold(value=0.0, values=BF16()),
    RandK(ratio=0.1),
    RandK(ratio=0.7),
    RandK(ratio=1.0),
    RandK(ratio=0.3, scaled=False),
    RandK(ratio=0.3, values=QSGD(bits=4)),
    PerTensor(QSGD(bits=4)),
    PerTensor(TopK(ratio=0.1, threshold="sampled")),
    PerTensor(Grid()),
]
ALL = [cls() for cls in CODECS.values()] + VARIANTS
LENGTHS = (0, 1, 2, 7, 8, 9, 511, 512, 513, 1000, 4099)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
FLOAT32_MAX = torch.finfo(torch.float32).max

every_codec = pytest.mark.parametrize("codec", ALL, ids=str)


def gaussian(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def round_trip(codec: Compressor, x: Tensor, key: int = 1) -> Tensor:
    return codec.decode(codec.encode(x, key), x.numel())


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def is_stochastic(codec: Compressor) -> bool:
    if isinstance(codec, PerTensor):
        return is_stochastic(codec.codec)
    if isinstance(codec, TopK) and codec.threshold == "sampled":
        return False  # a sample may give the same selection
    if isinstance(codec, (TopK, Threshold)):
        return is_stochastic(codec.values)
    if isinstance(codec, RandK):
        return True
    if isinstance(codec, QSGD) and codec.block == 1:
        return False  # every value is its block's norm
    return (codec.unbiased and not codec.lossless) or isinstance(codec, TernGrad)


def test_every_name_of_the_design_is_registered() -> None:
    names = "identity fp16 bf16 qsgd minmax grid natural terngrad sign onebit topk threshold randk per-tensor"
    assert set(names.split()) <= set(CODECS)
    assert all(CODECS[name].name == name for name in CODECS)


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="sign"):
        register("sign")(Sign)


@every_codec
@pytest.mark.parametrize("device", DEVICES)
def test_round_trip(codec: Compressor, device: str) -> None:
    for n in LENGTHS:
        x = gaussian(n).to(device)
        payload = codec.encode(x, key=n)
        assert payload.dtype == torch.uint8 and payload.dim() == 1 and payload.device == x.device
        assert payload.numel() <= codec.max_bytes(n)
        if codec.fixed_size:
            assert payload.numel() == codec.max_bytes(n)
        decoded = codec.decode(payload, n)
        assert decoded.dtype == torch.float32 and decoded.shape == x.shape and decoded.device == x.device
        assert bool(torch.isfinite(decoded).all())
        if codec.lossless:
            assert torch.equal(bits(decoded), bits(x))


@every_codec
def test_encode_leaves_x_alone_and_keeps_no_hold_of_it(codec: Compressor) -> None:
    x = gaussian(1000)
    before = x.clone()
    payload = codec.encode(x, key=3)
    assert torch.equal(bits(x), bits(before))
    kept = payload.clone()
    x.zero_()
    assert torch.equal(payload, kept)
    decoded = codec.decode(payload, 1000)
    kept = decoded.clone()
    payload.zero_()
    assert torch.equal(decoded, kept)


@every_codec
def test_vectors_and_payloads_may_be_slices_at_any_offset(codec: Compressor) -> None:
    long = gaussian(1003)
    x = long[3:]
    payload = codec.encode(x.clone(), key=3)
    assert torch.equal(codec.encode(x, key=3), payload)
    inside = torch.cat([payload.new_zeros(5), payload, payload.new_zeros(2)])[5:-2]
    assert torch.equal(codec.decode(inside, 1000), codec.decode(payload, 1000))


@every_codec
def test_the_key_decides_the_bytes_and_global_generators_are_untouched(codec: Compressor) -> None:
    x = gaussian(1000)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    first = codec.encode(x, key=5)
    assert torch.equal(codec.encode(x, key=5), first)
    codec.decode(first, 1000)
    others = [codec.encode(x, key=key) for key in (6, 5 + (1 << 32), 5 + (1 << 63), (1 << 64) - 1)]
    if is_stochastic(codec):
        assert all(not torch.equal(other, first) for other in others)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert states[2] == random.getstate()


@every_codec
def test_decode_add_is_bitwise_adding_the_decoded(codec: Compressor) -> None:
    for n in (1, 513, 1000):
        payload = codec.encode(gaussian(n), key=9)
        out = gaussian(n, seed=1)
        out[::3] = 0.0
        out[1::5] = -0.0
        expected = out.clone()
        expected += codec.decode(payload, n)
        scaled = out + 0.25 * codec.decode(payload, n)
        again = out.clone()
        codec.decode_add(payload, out)
        assert torch.equal(bits(out), bits(expected))
        codec.decode_add(payload, again, alpha=0.25)
        torch.testing.assert_close(again, scaled)


@every_codec
def test_zeros_decode_to_zeros(codec: Compressor) -> None:
    for n in (1, 600, 1300):
        assert torch.equal(round_trip(codec, torch.zeros(n)), torch.zeros(n))
    half = torch.cat([torch.zeros(1024), gaussian(1024)])  # rows of zeros beside others
    assert bool(torch.isfinite(round_trip(codec, half)).all())


@every_codec
@pytest.mark.parametrize("value", [1.0, -0.3, 1e-45, -3e-40, 1.1754944e-38, 3e38, -FLOAT32_MAX])
def test_equal_tiny_and_huge_values_stay_finite(codec: Compressor, value: float) -> None:
    for n in (1, 5, 1000):
        x = torch.full((n,), value)
        mixed = x * torch.linspace(-1, 1, n)
        for v in (x, mixed):
            decoded = round_trip(codec, v)
            assert bool(torch.isfinite(decoded).all())
            largest = 2 * n * float(v.abs().max())  # natural: 2; scaled randk: n/k; l2 norm: sqrt(n)
            absolute = 2.0**-126 if codec.relative_noise else 0.25  # natural; the variants of grid
            assert float(decoded.abs().max()) <= largest + absolute


@every_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_raise(codec: Compressor, bad: float) -> None:
    for n in (1, 700, 2500):
        for place in {0, n // 2, n - 1}:
            x = gaussian(n)
            x[place] = bad
            with pytest.raises(NonFiniteError):
                codec.encode(x, key=place)
    x = torch.full((600,), bad)
    x[::2] *= -1
    with pytest.raises(NonFiniteError):
        codec.encode(x, key=0)


@every_codec
def test_malformed_payloads_raise_or_decode(codec: Compressor) -> None:
    n = 700
    good = codec.encode(gaussian(n), key=1)
    size = good.numel()
    for length in {0, 1, 3, 4, 7, 8, 9, size // 2, size - 1} - {size}:
        with pytest.raises(PayloadError):
            codec.decode(good[:length], n)
    for payload in (torch.cat([good, good[:1]]), good.view(1, -1), good.to(torch.float32)):
        with pytest.raises(PayloadError):
            codec.decode(payload, n)
        with pytest.raises(PayloadError):
            codec.decode_add(payload, torch.zeros(n))
    generator = torch.Generator().manual_seed(0)
    for trial in range(150):
        if trial % 3 == 0:
            length = size if trial % 2 else int(torch.randint(0, 2 * size, (), generator=generator))
            payload = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)
        else:  # one byte of a good message, most often in its head
            payload = good.clone()
            place = int(torch.randint(0, min(size, 64) if trial % 2 else size, (), generator=generator))
            payload[place] = int(torch.randint(0, 256, (), generator=generator))
        try:
            decoded = codec.decode(payload, n)
        except PayloadError:
            continue
        assert decoded.shape == (n,) and decoded.dtype == torch.float32
        codec.decode_add(payload, torch.zeros(n))


@pytest.mark.parametrize("codec", [c for c in ALL if c.unbiased], ids=str)
def test_unbiased(codec: Compressor) -> None:
    """The mean error of many draws, along many directions, is within 4 standard errors of 0.

    Among the thousands of means of all codecs some are beyond that by chance. So one that is gets a second
    trial with other keys and four times as many: a bias would be twice as many standard errors off then.
    """
    n = 600
    v = gaussian(n) ** 3
    generator = torch.Generator().manual_seed(7)
    signs = torch.randint(0, 2, (20, n), generator=generator).double() * 2 - 1
    directions = torch.cat([signs, torch.ones(1, n), v.double()[None], v.double().abs()[None]])
    for scale, draws in ((1.0, 400), (1e-30, 100), (1e30, 100)) if codec.relative_noise else ((1.0, 400),):
        x = v * scale
        rounding = 1e-6 * directions.abs() @ v.double().abs()

        def unbiased(keys: range, x: Tensor = x, scale: float = scale, rounding: Tensor = rounding) -> bool:
            errors = torch.stack([round_trip(codec, x, key).double() - x.double() for key in keys])
            along = errors / scale @ directions.T
            standard_error = along.std(0) / math.sqrt(len(keys))
            return bool((along.mean(0).abs() <= 4 * standard_error + rounding).all())

        assert unbiased(range(draws)) or unbiased(range(draws, 5 * draws))


def least_contraction(codec: Compressor, n: int) -> float | None:
    """delta of ||v - C(v)||^2 <= (1 - delta) ||v||^2 that holds for every v, where there is one."""
    if isinstance(codec, (Identity, FP16, BF16)):
        return 1 - 2.0**-16
    if isinstance(codec, TopK) and codec.threshold == "exact" and codec.values.lossless:
        return max(1, round(codec.ratio * n)) / n
    if isinstance(codec, TopK) and codec.values.lossless:
        return 1 / n
    if isinstance(codec, (Sign, OneBit)):
        return 1 / (n if isinstance(codec.block, str) else min(n, codec.block))
    if isinstance(codec, RandK) and not codec.scaled:
        return 0.0
    return None


@pytest.mark.parametrize("codec", [c for c in ALL if least_contraction(c, 9) is not None], ids=str)
def test_contraction(codec: Compressor) -> None:
    for n in (1, 9, 600, 3000):
        spike = torch.zeros(n)
        spike[n // 2] = -5
        delta = least_contraction(codec, n)
        assert delta is not None
        for v in (gaussian(n), gaussian(n) ** 5, spike, torch.ones(n), torch.linspace(-2, 1, n)):
            error = (v - round_trip(codec, v)).double().square().sum()
            norm = v.double().square().sum()
            assert float(error) <= (1 - delta) * float(norm) * (1 + 1e-6) + 1e-9


@every_codec
def test_relative_error_and_gamma(codec: Compressor) -> None:
    alpha = relative_error(codec)
    assert math.isfinite(alpha) and alpha >= 0 and alpha == relative_error(codec)
    assert alpha == 0 or not codec.lossless
    assert 0 < codec.contraction_gamma() <= 1


@every_codec
def test_pickle_equality_and_spec(codec: Compressor) -> None:
    again = pickle.loads(pickle.dumps(codec))
    assert again == codec and hash(again) == hash(codec) and str(again) == str(codec)
    spec = str(codec)
    assert spec.split(":")[0] == codec.name
    for f in fields(codec):  # type: ignore[arg-type]
        if "help" in f.metadata and getattr(codec, f.name) is not None:
            assert f"{f.name}=" in spec
    assert codec.for_segments((3, 4)).name == codec.name


@every_codec
def test_options_have_help_and_instances_are_frozen(codec: Compressor) -> None:
    for f in fields(codec):  # type: ignore[arg-type]
        assert f.metadata.get("help") or f.name == "sizes"
        with pytest.raises(AttributeError):
            setattr(codec, f.name, None)


AWKWARD = (0, 1, 511, 512, 513, 3000, 10**5 + 3)


def unaligned(x: Tensor, offset: int) -> Tensor:
    """The same values in a slice that starts `offset` elements into its memory."""
    return torch.cat([x.new_zeros(offset), x])[offset:]


@every_codec
@pytest.mark.parametrize("either_way", ["kernels"], indirect=True)
def test_kernels_and_torch_give_the_same_bytes(codec: Compressor) -> None:
    """Payload, decoded vector and sum, for every size and alignment; tiny, huge values and -0 too."""
    for n in AWKWARD:
        x = unaligned(gaussian(n), 3)
        x[5::7] = 0.0
        x[6::11] = -0.0
        for v in (x, (gaussian(n) ** 7 * 1e30).clamp(-FLOAT32_MAX, FLOAT32_MAX), gaussian(n) * 1e-38):
            payload = unaligned(codec.encode(v, key=n), 1)
            decoded = codec.decode(payload, n)
            sums = [unaligned(gaussian(n, seed=1), 1) for _ in range(4)]
            codec.decode_add(payload, sums[0])
            codec.decode_add(payload, sums[1], alpha=0.3)
            with kernels.disabled():
                assert torch.equal(codec.encode(v, key=n), payload)
                assert torch.equal(bits(codec.decode(payload, n)), bits(decoded))
                codec.decode_add(payload, sums[2])
                codec.decode_add(payload, sums[3], alpha=0.3)
            assert torch.equal(bits(sums[0]), bits(sums[2])) and torch.equal(bits(sums[1]), bits(sums[3]))


@every_codec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_and_cpu_give_the_same_bytes(codec: Compressor) -> None:
    for n in AWKWARD:
        x = gaussian(n)
        payload = codec.encode(x, key=n)
        on_gpu = codec.encode(x.cuda(), key=n)
        assert torch.equal(on_gpu.cpu(), payload)
        assert torch.equal(bits(codec.decode(on_gpu, n).cpu()), bits(codec.decode(payload, n)))
        sums = [gaussian(n, seed=1), gaussian(n, seed=1).cuda()]
        codec.decode_add(payload, sums[0])
        codec.decode_add(on_gpu, sums[1])
        assert torch.equal(bits(sums[0]), bits(sums[1].cpu()))


@every_codec
def test_bytes_do_not_depend_on_the_number_of_threads(
    codec: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PER_THREAD", 1000)
    monkeypatch.setattr(kernels, "TILE", 2048)
    before = torch.get_num_threads()
    try:
        n = 10**5 + 3
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            payload = codec.encode(gaussian(n), key=8)
            out = gaussian(n, seed=1)
            codec.decode_add(payload, out)
            results.append((payload, bits(codec.decode(payload, n)), bits(out)))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@every_codec
def test_nan_is_found_by_every_thread(codec: Compressor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PER_THREAD", 1000)
    monkeypatch.setattr(kernels, "TILE", 2048)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for place in (0, 50_000, 99_999):
            x = gaussian(10**5)
            x[place] = math.nan
            with pytest.raises(NonFiniteError):
                codec.encode(x, key=place)
    finally:
        torch.set_num_threads(before)


def results(codec: Compressor, n: int) -> list[Tensor]:
    """A message about n values, what it decodes to, and what adding it gives; as bytes."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float32)
    payload, added, scaled = codec.encode(x, key=n), x.clone(), x.clone()
    codec.decode_add(payload, added)
    codec.decode_add(payload, scaled, alpha=0.3)
    floats = [codec.decode(payload, n), added, scaled]
    assert all(v.dtype is torch.float32 and v.shape == x.shape for v in floats)
    return [payload, *map(bits, floats)]


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    """Sets torch's default dtype until the test ends."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@every_codec
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_torchs_default_dtype_changes_nothing(
    codec: Compressor, dtype: torch.dtype, default_dtype: Callable[[torch.dtype], None]
) -> None:
    lengths, alpha = (0, 1, 513, 3000), relative_error(codec)
    expected = [results(codec, n) for n in lengths]
    default_dtype(dtype)
    for n, wanted in zip(lengths, expected, strict=True):
        assert all(map(torch.equal, results(codec, n), wanted))
    assert relative_error(codec) == alpha
