"""What single codecs promise beyond the contract."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from compressors import (
    BF16,
    FP16,
    QSGD,
    Compressor,
    Grid,
    LayerTopK,
    MinMax,
    Natural,
    OneBit,
    PayloadError,
    PerTensor,
    RandK,
    Sign,
    TernGrad,
    Threshold,
    TopK,
    relative_error,
)
from compressors.base import all_finite
from compressors.noise import derive_key
from compressors.packing import pack, packed_bytes, to_bytes, unpack
from compressors.randk import random_indices


def gaussian(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def round_trip(codec: Compressor, x: Tensor, key: int = 1) -> Tensor:
    return codec.decode(codec.encode(x, key), x.numel())


@pytest.mark.parametrize("width", range(1, 18))
def test_packing(width: int) -> None:
    for n in (0, 1, 7, 8, 9, 512, 1001):
        generator = torch.Generator().manual_seed(n)
        codes = torch.randint(0, 1 << width, (n,), dtype=torch.int32, generator=generator)
        codes = codes if width > 8 else codes.to(torch.uint8)
        data = to_bytes(*pack(codes, width))
        assert data.numel() == packed_bytes(n, width) <= n * width / 8 + 3
        assert torch.equal(unpack(data, n, width), codes)


@pytest.mark.parametrize(
    ("codec", "alpha"),
    [
        (QSGD(bits=8), 0.0105),
        (QSGD(bits=4), 0.189),
        (QSGD(bits=8, norm="l2"), 0.073),
        (QSGD(bits=4, norm="l2"), 1.26),
        (Sign(block="tensor"), (1 - 2 / np.pi) ** 0.5),
        (OneBit(block="tensor"), (1 - 2 / np.pi) ** 0.5),
        (RandK(ratio=0.1), 3.0),
        (RandK(ratio=0.1, scaled=False), 0.9**0.5),
        (TopK(ratio=0.01), (1 - 0.0845) ** 0.5),
    ],
    ids=str,
)
def test_typical_relative_error(codec: Compressor, alpha: float) -> None:
    assert relative_error(codec) == pytest.approx(alpha, rel=0.03)


def test_default_consensus_steps() -> None:
    assert Sign().contraction_gamma() == 0.45
    assert TopK(0.01).contraction_gamma() == pytest.approx(0.04)
    assert PerTensor(TopK(0.01)).contraction_gamma() == pytest.approx(0.04)
    steps = [QSGD(bits=b).contraction_gamma() for b in (16, 8, 4, 3, 2, 1)]
    assert steps[:3] == [1.0, 1.0, 1.0] and steps[2:] == sorted(set(steps), reverse=True)


@pytest.mark.parametrize(
    ("codec", "spec"),
    [
        (QSGD(), "qsgd:bits=8,norm=max,block=512"),
        (QSGD(levels=7, norm="l2", block="tensor"), "qsgd:bits=4,levels=7,norm=l2,block=tensor"),
        (FP16(), "fp16"),
        (RandK(scaled=False), "randk:ratio=0.01,scaled=false,values=identity"),
        (TopK(values=Sign(block=64)), "topk:ratio=0.01,threshold=exact,values=(sign:block=64)"),
        (PerTensor(Sign(), sizes=(3, 4)), "per-tensor:codec=(sign:block=512)"),
    ],
)
def test_specs(codec: Compressor, spec: str) -> None:
    assert str(codec) == spec


@pytest.mark.parametrize(
    "make",
    [
        lambda: QSGD(bits=0),
        lambda: QSGD(bits=9),
        lambda: QSGD(levels=0),
        lambda: QSGD(levels=40_000),
        lambda: QSGD(levels=3, bits=4),
        lambda: QSGD(norm="l1"),
        lambda: QSGD(block=0),
        lambda: QSGD(block="layer"),
        lambda: MinMax(rounding="up"),
        lambda: Grid(step=0.0),
        lambda: TernGrad(clip=-1.0),
        lambda: TopK(ratio=0.0),
        lambda: TopK(ratio=1.5),
        lambda: TopK(threshold="guess"),
        lambda: Threshold(value=-1.0),
        lambda: Threshold(value=float("nan")),
        lambda: RandK(ratio=2.0),
    ],
)
def test_bad_options_say_what_fits(make: Callable[[], Compressor]) -> None:
    with pytest.raises(ValueError, match=r"given; .* fits?, e\.g\. "):
        make()


def test_message_sizes_of_resnet20() -> None:
    n = 272_474
    assert QSGD(bits=8).max_bytes(n) == n + 4 * 533 <= 0.28e6
    assert QSGD(bits=4).max_bytes(n) == n // 2 + 4 * 533
    assert Sign().max_bytes(n) == -(-n // 8) + 4 * 533
    assert TopK(0.01).max_bytes(n) == 4 + 8 * 2725
    assert Natural().max_bytes(n) == n + -(-n // 8)


def test_half_precision() -> None:
    x = torch.tensor([1e6, -1e6, 65504.0, 3.4028235e38, -3.4028235e38])
    assert round_trip(FP16(), x).tolist() == [65504.0, -65504.0, 65504.0, 65504.0, -65504.0]
    assert float(round_trip(BF16(), x).abs().max()) == torch.finfo(torch.bfloat16).max
    v = gaussian(10_000)
    v = v[v.abs() > 6.2e-5]
    assert float(((round_trip(FP16(), v) - v) / v).abs().max()) <= 2**-11
    assert float(((round_trip(BF16(), v) - v) / v).abs().max()) <= 2**-8


def test_finite_values_may_have_a_sum_that_is_not() -> None:
    assert all_finite(torch.full((10,), 3e38)) and all_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not all_finite(torch.tensor([1.0, bad, 3e38]))


@pytest.mark.parametrize("value", [1.0, -0.3, 3e38, -1e-30])
def test_blocks_of_one_value_are_exact(value: float) -> None:
    x = torch.full((600,), value)
    levels = (QSGD(), QSGD(bits=2), QSGD(bits=1), TernGrad(), TernGrad(clip=2.5))
    for codec in (*levels, Sign(), OneBit(), MinMax()):
        torch.testing.assert_close(round_trip(codec, x), x, rtol=3e-7, atol=0)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_minmax_error_is_within_a_step(rounding: str) -> None:
    for x in (gaussian(1000) + 10, gaussian(1000) * 1e37, gaussian(1000) ** 5):
        blocks = x.double().split(512)
        step = torch.cat([((b.max() - b.min()) / 255).expand(len(b)) for b in blocks])
        error = (round_trip(MinMax(rounding=rounding), x).double() - x).abs()
        bound = step * (0.5 if rounding == "nearest" else 1) + 1e-6 * x.abs()
        assert bool((error <= bound).all())


@pytest.mark.parametrize("step", [0.001, 0.25, 3.0])
def test_grid_error_is_below_a_step_and_bits_follow_the_range(step: float) -> None:
    codec = Grid(step=step)
    for x in (gaussian(1300), gaussian(1300) ** 7 * 100, gaussian(1300) * 1e6, torch.linspace(-9, 9, 1300)):
        decoded = round_trip(codec, x)
        assert float((decoded.double() - x.double()).abs().max()) < step * 1.01
    few = codec.encode(gaussian(5120) * step, key=0).numel()
    assert few < 5120 * 4.5 / 8
    assert codec.encode(torch.full((5120,), step), key=0).numel() == 5 * 10
    noise = torch.stack([round_trip(codec, gaussian(1300) * step, key).double() for key in range(50)])
    assert float(noise.var(0).mean()) <= step**2 / 4
    with pytest.raises(PayloadError, match="bits per value"):
        codec.decode(torch.tensor([0, 0, 0, 0, 20, 1, 1, 1], dtype=torch.uint8), 1)


def test_natural_goes_to_neighbouring_powers_of_two() -> None:
    x = torch.cat([gaussian(2000), gaussian(2000) * 1e-30, torch.tensor([0.0, 1.0, -4.0])])
    decoded = round_trip(Natural(), x)
    ratio = (decoded / x)[:-3].double()
    assert bool(((torch.frexp(decoded[:-3]).mantissa.abs() == 0.5) & (ratio > 0.5) & (ratio <= 2)).all())
    assert decoded[-3:].tolist() == [0.0, 1.0, -4.0]
    worst = torch.full((20_000,), 4 / 3)  # (1-p) p / (1+p)^2 is largest, 1/8, at p = 1/3
    omega = float((round_trip(Natural(), worst) / worst - 1).double().square().mean())
    assert omega == pytest.approx(1 / 8, rel=0.03)


def test_terngrad_clipping_lowers_the_error_and_the_scale() -> None:
    x = gaussian(4096)
    assert relative_error(TernGrad(clip=2.5)) < 0.9 * relative_error(TernGrad())
    decoded = round_trip(TernGrad(clip=2.5, block="tensor"), x)
    assert float(decoded.max()) == pytest.approx(2.5 * float(x.square().mean().sqrt()), rel=1e-5)
    assert len(decoded.unique()) == 3


def test_sampled_threshold_keeps_the_largest_and_nearly_as_many() -> None:
    n, ratio = 200_000, 0.01
    x = gaussian(n)
    counts = []
    for key in range(20):
        decoded = round_trip(TopK(ratio, threshold="sampled"), x, key)
        sent = decoded.nonzero().view(-1)
        rest = x.abs().index_fill(0, sent, 0)
        assert float(x[sent].abs().min()) >= float(rest.max())
        counts.append(len(sent))
    assert max(counts) == ratio * n and min(counts) > 0.9 * ratio * n
    # the start of the sample depends on the key: half of the samples see large values only, and misjudge
    alternating = gaussian(n) * torch.tensor([1.0, 10.0]).repeat(n // 2)
    counts = [TopK(0.2, "sampled").encode(alternating, key).numel() for key in range(20)]
    assert len(set(counts)) > 1


@pytest.mark.parametrize("codec", [TopK(0.25, "sampled"), LayerTopK(0.25)], ids=str)
def test_sampled_thresholds_send_no_zeros_but_one(codec: Compressor) -> None:
    """Of a residual that is mostly zero, as an embedding's, only what is not."""
    x = torch.zeros(40_000)
    assert codec.encode(x, 0).numel() <= 4 + 4 + 4
    x[::50] = gaussian(800)
    payload = codec.encode(x, 0)
    assert torch.equal(codec.decode(payload, len(x)), x) and payload.numel() <= 4 + 800 * (4 + 4)


@pytest.mark.parametrize("n", [1, 2_048, 5_000, 70_000])
def test_all_of_a_vector_is_sent_at_ratio_1(n: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    for codec in (TopK(1.0), TopK(1.0, "sampled"), LayerTopK(1.0)):
        assert torch.equal(round_trip(codec, x, 3), x), codec


@pytest.mark.parametrize("codec", [TopK(ratio=2e-7), Threshold(value=0.5), TopK(2e-7, "sampled")], ids=str)
def test_indices_above_two_to_the_24(codec: Compressor) -> None:
    n = 2**24 + 100
    x = torch.zeros(n)
    places = [2**24 + 1, 2**24 + 3, n - 1]
    x[places] = torch.tensor([3.0, -2.0, 1.0])
    decoded = round_trip(codec, x)
    sent = decoded.nonzero().view(-1).tolist()
    assert sent and set(sent) <= set(places) and torch.equal(decoded[sent], x[sent])
    if not isinstance(codec, TopK) or codec.threshold == "exact":
        assert sent == places


def test_random_indices_are_uniform_subsets() -> None:
    for n, k in ((1, 1), (1, 0), (10, 3), (10, 5), (10, 8), (10, 10), (5000, 2499), (2**24 + 100, 50)):
        for seed in range(20):
            index = random_indices(n, k, seed)
            assert index.numel() == k and bool((index[1:] > index[:-1]).all())
            assert k == 0 or (int(index[0]) >= 0 and int(index[-1]) < n)
    assert max(int(random_indices(2**24 + 100, 10**6, s)[-1]) for s in range(3)) > 2**24
    n, k, draws = 20, 7, 4000
    chosen = np.zeros((n, n))
    for seed in range(draws):
        subset = random_indices(n, k, seed).numpy()
        chosen[np.ix_(subset, subset)] += 1
    for expected, found in (
        (k / n, np.diag(chosen)),
        (k * (k - 1) / (n * (n - 1)), chosen[np.triu_indices(n, 1)]),
    ):
        sd = (draws * expected * (1 - expected)) ** 0.5
        assert np.abs(found - draws * expected).max() < 4.5 * sd


def test_per_tensor_is_the_codec_on_each_tensor() -> None:
    sizes = (100, 3, 0, 900, 1)
    x = gaussian(sum(sizes)) * torch.linspace(0.01, 10, sum(sizes))
    for codec in (TopK(0.05), TopK(0.05, "sampled"), Sign(block="tensor"), QSGD(bits=4), Grid()):
        each = PerTensor(codec).for_segments(sizes)
        payload = each.encode(x, key=4)
        expected = [
            codec.decode(codec.encode(part, derive_key(4, i)), part.numel())
            for i, part in enumerate(x.split(list(sizes)))
        ]
        assert torch.equal(each.decode(payload, x.numel()), torch.cat(expected))
        assert payload.numel() <= each.max_bytes(x.numel())
        with pytest.raises(PayloadError):
            each.decode(payload[:-1], x.numel())
        with pytest.raises(ValueError, match="1004"):
            each.encode(x[:-1], key=4)
    kept = [int((part != 0).sum()) for part in round_trip(PerTensor(TopK(0.05), sizes), x).split(list(sizes))]
    assert kept == [5, 1, 0, 45, 1]


@pytest.mark.parametrize("damage", ["unsorted", "twice", "beyond", "negative", "count"])
def test_bad_indices_raise(damage: str) -> None:
    codec = Threshold(value=1.0)
    payload = codec.encode(torch.tensor([2.0, 0.0, 3.0, 0.0, 4.0]), key=0)
    index = payload[4:16].view(torch.int32)
    if damage == "unsorted":
        index.copy_(torch.tensor([2, 0, 4]))
    elif damage == "twice":
        index.copy_(torch.tensor([0, 2, 2]))
    elif damage == "beyond":
        index[-1] = 5
    elif damage == "negative":
        index[0] = -1
    else:
        payload[:4].view(torch.int32)[0] = -3
    with pytest.raises(PayloadError):
        codec.decode(payload, 5)
    with pytest.raises(PayloadError):
        codec.decode_add(payload, torch.zeros(5))


def test_of_equal_values_the_first_are_sent() -> None:
    for n in (100, 200_000):
        x = torch.ones(n)
        x[::2] *= -1
        x[n - 1] = 2
        for codec in (TopK(0.1), TopK(0.1, "sampled")):
            sent = round_trip(codec, x).nonzero().view(-1)
            assert sent.tolist() == [*range(n // 10 - 1), n - 1]


def test_exact_selection_where_the_sample_misleads() -> None:
    """Large values in places that the sample of `exact` misses, or only sees."""
    n = 300_000
    for visible in (True, False):
        x = gaussian(n)
        seen = torch.zeros(n, dtype=torch.bool)
        seen[:: n // (1 << 16)] = True
        x[seen if visible else ~seen] *= 100
        sent = round_trip(TopK(0.01), x).nonzero().view(-1)
        assert set(sent.tolist()) == set(torch.topk(x.abs(), 3000).indices.tolist())
