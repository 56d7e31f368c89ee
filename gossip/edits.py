"""Tells who changes a gradient that the method has used up already."""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLED = 64
"""Values of the first gradient, about, that are looked at for changes."""


class Edits:
    """Looks for changes of `gradient`, float32 [d], between `final` and `found`, one after the other.

    What a GradScaler writes leaves no trace in a tensor's version, so values are looked at, too, but only
    the first time: on a GPU that waits for the device.
    """

    def __init__(self, gradient: Tensor) -> None:
        self._gradient = gradient
        self._version = gradient._version  # when it was final
        self._first: Tensor | None = None  # some of its values, the first time
        self._seen = self._told = False

    def final(self) -> None:
        """The method has used up the gradient as it is."""
        self._version = self._gradient._version
        self._first = None if self._seen else self._sample().clone()
        self._seen = True

    def found(self) -> bool:
        """Whether the gradient has been changed since; True once at most."""
        if self._told:
            return False
        self._told = self._gradient._version != self._version or (
            self._first is not None and not torch.equal(self._first, self._sample())
        )
        return self._told

    def _sample(self) -> Tensor:
        return self._gradient[:: max(1, self._gradient.numel() // SAMPLED)]
