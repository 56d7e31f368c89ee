"""What theory and experience say about a method and a codec: the consensus step, and warnings.

alpha = ‖C(v) − v‖/‖v‖ is measured on Gaussian data (`compressors.relative_error`); omega = alpha².
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from compressors import Compressor, relative_error
from topologies import MixingMatrix

SMALL_NOISE = 0.05  # omega up to which an unbiased codec is used as it is (4-bit max-norm: .034)
SMALL_DELTA = 0.5
MARGIN = 2.0  # DCD's bound is sufficient, not necessary: warn only well above it
LONG_RUN = 100_000  # rounds
PULL_ERROR = 0.05  # of the parameters' norm: 8 bits have .01, 4 bits .19


@lru_cache(maxsize=256)
def alpha(compressor: Compressor) -> float:
    """The relative error of the codec, measured once."""
    return relative_error(compressor)


def scale(compressor: Compressor) -> float:
    """What error-feedback methods multiply C by: 1/(1 + omega) if C is unbiased and omega large, else 1.

    An unbiased C with omega ≥ 1 is no contraction; C/(1 + omega) is one, with delta = 1/(1 + omega). The
    measured omega is taken: worst-case bounds are so large that hardly anything would mix. Three digits, so
    that hosts that round differently agree.
    """
    omega = alpha(compressor) ** 2
    large = compressor.unbiased and compressor.relative_noise and omega > SMALL_NOISE
    return float(f"{1 / (1 + omega):.3g}") if large else 1.0


def delta(compressor: Compressor) -> float:
    """The contraction ‖v − C(v)‖² = (1 − delta) ‖v‖², with C scaled by `scale`."""
    c, omega = scale(compressor), alpha(compressor) ** 2
    return c if c < 1 else 1 - omega


@lru_cache(maxsize=256)
def default_gamma(compressor: Compressor) -> float:
    """The codec's own consensus step, measured once."""
    return compressor.contraction_gamma()


def check_gamma(gamma: float | None) -> None:
    """Raise ValueError unless gamma is None or in (0, 1]."""
    if gamma is not None and not 0 < gamma <= 1:
        raise ValueError(f"gamma={gamma}: give a consensus step above 0, up to 1, or leave it out")


def gamma_warnings(method: str, gamma: float | None, compressor: Compressor) -> Iterator[str]:
    """CHOCO and DeepSqueeze diverge when the consensus step is large for what the codec lets through.

    Seen with CHOCO's consensus on a ring of 8: top-1 % (delta = .09) diverges from gamma = .3 on, top-10 %
    (.44) from .5, random 10 % (.10) from .2; sign (.64) and 3 bits and more converge with any gamma.
    """
    if gamma is not None and (d := delta(compressor)) < SMALL_DELTA and gamma > d:
        yield (
            f"{method}: gamma={gamma:g} is large for {compressor} (delta={d:.2g}): likely to diverge. "
            f"Leave gamma out to use {default_gamma(compressor):g}."
        )


def dcd_threshold(topology: MixingMatrix) -> float:
    """(1 − rho)/(2 mu): DCD converges if alpha is below (Tang et al. 2018); inf for one node."""
    return topology.spectral_gap / (2 * topology.mu) if topology.size > 1 else math.inf


def dcd_warnings(topology: MixingMatrix, compressor: Compressor) -> Iterator[str]:
    """DCD wants an unbiased codec with alpha below `dcd_threshold`: biased ones above it are named, and
    unbiased ones far above it."""
    a, bound = alpha(compressor), dcd_threshold(topology)
    if a > (MARGIN if compressor.unbiased else 1) * bound:
        bias = "" if compressor.unbiased else " and is biased"
        yield (
            f"dcd: {compressor} loses {a:.3g} of a message{bias}; theory asks for an unbiased one that loses "
            f"at most {bound:.3g} on {topology.name} with {topology.size} nodes (sufficient, not necessary). "
            "Take a finer codec, or choco."
        )


def ecd_warnings(compressor: Compressor) -> Iterator[str]:
    """Noise relative to ECD's message, which grows with t: the estimates' error is about 3 alpha √t ‖Δx‖."""
    a = alpha(compressor)
    rounds = 1 / (3 * a) ** 2 if a > 0 else math.inf
    if compressor.relative_noise and rounds < LONG_RUN:
        yield (
            f"ecd: the noise of {compressor} grows with its messages, and they grow with t: after about "
            f"{rounds:.2g} rounds the estimates are off by a whole step. Take compressor grid, or algorithm "
            "dcd or choco, for long runs."
        )


def quantization_warnings(method: str, compressor: Compressor) -> Iterator[str]:
    """Averaging C(g) without error feedback: a biased C never converges, a large omega slows SGD down."""
    omega = alpha(compressor) ** 2
    if not compressor.unbiased and omega > SMALL_NOISE:
        yield (
            f"{method}: {compressor} is biased, and without error feedback what it loses is lost for good. "
            f"Take {method}:ef=true."
        )
    elif omega > 1:
        yield (
            f"{method}: the noise of {compressor} is {omega:.2g} times as large as the gradient (squared "
            f"norms), so steps must be smaller. Take more bits, a smaller block, or {method}:ef=true."
        )


def pull_warnings(method: str, compressor: Compressor) -> Iterator[str]:
    """Workers that train on C(w̄): what C loses is missing from the parameters themselves."""
    a = alpha(compressor)
    if a > PULL_ERROR:
        yield (
            f"{method}: workers get the parameters through {compressor}, which loses {a:.2g} of them "
            f"(norms): training is unlikely to converge. Take a codec that loses at most {PULL_ERROR:g}, "
            "such as qsgd:bits=8 or fp16."
        )
