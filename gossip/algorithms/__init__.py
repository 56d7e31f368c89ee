"""The methods, one file each. To add one: write its file and import it here."""

from gossip.algorithms.allreduce import AllReduce
from gossip.algorithms.base import (
    ALGORITHMS,
    Adoption,
    Algorithm,
    GradientMethod,
    ParameterMethod,
    option,
    register,
)
from gossip.algorithms.choco import CHOCO
from gossip.algorithms.dcd import DCD
from gossip.algorithms.deepsqueeze import DeepSqueeze
from gossip.algorithms.dgc import DGC
from gossip.algorithms.dpsgd import DPSGD
from gossip.algorithms.ecd import ECD
from gossip.algorithms.gradient_dropping import GradientDropping
from gossip.algorithms.local import Local
from gossip.algorithms.naive import Naive
from gossip.algorithms.p3 import P3
from gossip.algorithms.plump import PlumpDP
from gossip.algorithms.powersgd import PowerSGD
from gossip.algorithms.qsgd import QSGD
from gossip.algorithms.signsgd import SignSGD
from gossip.algorithms.slim import SlimDP

__all__ = [
    "ALGORITHMS",
    "CHOCO",
    "DCD",
    "DGC",
    "DPSGD",
    "ECD",
    "P3",
    "QSGD",
    "Adoption",
    "Algorithm",
    "AllReduce",
    "DeepSqueeze",
    "GradientDropping",
    "GradientMethod",
    "Local",
    "Naive",
    "ParameterMethod",
    "PlumpDP",
    "PowerSGD",
    "SignSGD",
    "SlimDP",
    "option",
    "register",
]
