"""The methods, one file each. To add one: write its file and import it here."""

from gossip.algorithms.allreduce import AllReduce
from gossip.algorithms.base import ALGORITHMS, Algorithm, GradientMethod, ParameterMethod, option, register
from gossip.algorithms.choco import CHOCO
from gossip.algorithms.dcd import DCD
from gossip.algorithms.deepsqueeze import DeepSqueeze
from gossip.algorithms.dpsgd import DPSGD
from gossip.algorithms.ecd import ECD
from gossip.algorithms.local import Local
from gossip.algorithms.naive import Naive

__all__ = [
    "ALGORITHMS",
    "CHOCO",
    "DCD",
    "DPSGD",
    "ECD",
    "Algorithm",
    "AllReduce",
    "DeepSqueeze",
    "GradientMethod",
    "Local",
    "Naive",
    "ParameterMethod",
    "option",
    "register",
]
