"""Learning-rate schedules in epochs of the data, so that they mean the same on any number of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from gossip.errors import UsageError
from gossip.suggest import nearest

DECAY = 0.1
"""Factor at every step of ``step``."""

MILESTONES = (0.5, 0.75)
NAMES = ("constant", "cosine", "step")


def lr_factor(spec: str, epochs: float, warmup: float = 0.0) -> Callable[[float], float]:
    """The factor on the peak learning rate as a function of the time e in epochs (fractions too).

    - ``constant``: 1.
    - ``cosine``: (1 + cos(pi (e - w) / (E - w))) / 2: 1 at the end of the warm-up, 0 at the end of the run.
    - ``step`` or ``step:0.5,0.75``: times 0.1 at each of these fractions of the run, as He et al. 2015
      (arXiv 1512.03385) for CIFAR-10.

    In the first w epochs it rises linearly from 0 (Goyal et al. 2017, arXiv 1706.02677). After the end it
    stays as it is. With torch: ``LambdaLR(optimizer, lambda step: factor(step / steps_per_epoch))``.

    Args:
        spec: the schedule.
        epochs: E, length of the run, above 0.
        warmup: w, at least 0 and below E.

    Raises:
        UsageError: no such schedule, bad fractions, lengths out of range.
    """
    if not 0 < epochs < math.inf:
        raise UsageError(f"{epochs:g} epochs: the run needs a length above 0")
    if not 0 <= warmup < epochs:
        raise UsageError(f"a warm-up of {warmup:g} epochs in a run of {epochs:g}: it must be shorter")
    after_warmup = _after_warmup(spec, epochs, warmup)

    def factor(e: float) -> float:
        ramp = e / warmup if e < warmup else 1.0
        return ramp * after_warmup(min(e, epochs))

    return factor


def _after_warmup(spec: str, epochs: float, warmup: float) -> Callable[[float], float]:
    name, colon, rest = spec.strip().partition(":")
    if name == "step":
        milestones = _fractions(rest, spec) if colon else MILESTONES
        return lambda e: DECAY ** sum(e / epochs >= fraction for fraction in milestones)
    if name not in NAMES:
        near = nearest(name, NAMES)
        raise UsageError(
            f"LR schedule {spec!r}: there is none of that name{f'; did you mean {near!r}?' if near else ''}\n"
            "There is: constant, cosine, step:0.5,0.75"
        )
    if colon:
        raise UsageError(f"LR schedule {spec!r}: {name} has no options; type {name}")
    if name == "constant":
        return lambda e: 1.0
    return lambda e: (1 + math.cos(math.pi * max(0.0, e - warmup) / (epochs - warmup))) / 2


def _fractions(text: str, spec: str) -> tuple[float, ...]:
    try:
        found = tuple(float(item) for item in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(a < b for a, b in pairwise((0.0, *found, 1.0))):
        raise UsageError(
            f"LR schedule {spec!r}: step takes rising fractions of the run, such as step:0.5,0.75"
        )
    return found
