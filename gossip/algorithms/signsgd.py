"""EF-signSGD (Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
arXiv 1901.09847, Alg. 1, on n nodes): error feedback with any codec, by default one sign per value.

On node i, with the error e_i = 0 at the start:

    p_i = g_i + e_i
    m_i = c C(p_i);   e_i ← p_i − m_i           C(p) = (‖p‖₁/d) sign(p) in each block of d = 512 values
    g ← (1/n) Σ_j m_j

Symbols: g, p, m, e: float32 [n], a bucket; c = 1/(1 + ω) makes an unbiased C of relative variance ω a
contraction (1 for small ω and for biased C, such as the sign). Sent: C(p), to all nodes or in parts
(exchange.py); then the owner of a part also carries the error of the second compression, as in DoubleSqueeze
(Tang et al. 2019, arXiv 1905.05957).
Law: n·g + Σ_i e_i (new) = Σ_i g_i + Σ_i e_i (old), to rounding.

Differences with the paper: e is kept in units of the gradient, not of the step (the learning rate is the
optimizer's), so at a changing learning rate old errors are applied at the new one; the optimizer may have
momentum. ``--compressor onebit`` makes it 1-bit SGD (Seide et al. 2014).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gossip.algorithms.base import register
from gossip.algorithms.qsgd import QSGD


@register("signsgd")
@dataclass(frozen=True)
class SignSGD(QSGD):
    """Error feedback with any codec; one sign per value by default. It is qsgd:ef=true."""

    paper: ClassVar[str] = "Karimireddy et al. 2019, arXiv 1901.09847, Alg. 1"
    default_compressor: ClassVar[str] = "sign:block=512"

    ef: bool = field(default=True, init=False)
