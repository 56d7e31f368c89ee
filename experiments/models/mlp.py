"""A multi-layer perceptron: small and quick, for trying things out."""

from __future__ import annotations

from torch import nn


def mlp(num_classes: int = 10, hidden: int = 64) -> nn.Module:
    """float32 [b, 3, 32, 32] -> logits [b, num_classes] through one hidden layer of `hidden` units."""
    if hidden < 1:
        raise ValueError(f"hidden={hidden}: at least 1 hidden unit is needed, such as mlp:hidden=64")
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 32 * 32, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    )
