"""Message compressors, all with the Compressor contract of base.py; one file per codec or pair of twins."""

from .base import (
    CODECS,
    Compressor,
    NonFiniteError,
    PaperSize,
    PayloadError,
    Shape,
    option,
    register,
    relative_error,
)
from .grid import Grid
from .half import BF16, FP16
from .identity import Identity
from .layer_topk import LayerTopK
from .minmax import MinMax
from .natural import Natural
from .per_tensor import PerTensor
from .qsgd import QSGD
from .randk import RandK
from .sign import OneBit, Sign
from .terngrad import TernGrad
from .topk import Threshold, TopK

__all__ = [
    "BF16",
    "CODECS",
    "FP16",
    "QSGD",
    "Compressor",
    "Grid",
    "Identity",
    "LayerTopK",
    "MinMax",
    "Natural",
    "NonFiniteError",
    "OneBit",
    "PaperSize",
    "PayloadError",
    "PerTensor",
    "RandK",
    "Shape",
    "Sign",
    "TernGrad",
    "Threshold",
    "TopK",
    "option",
    "register",
    "relative_error",
]
