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
