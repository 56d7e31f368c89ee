"""Residual networks for 32x32 images (He et al. 2015, arXiv 1512.03385, section 4.2 and table 6).

A 3x3 convolution, three stages of n blocks with 16, 32 and 64 channels at 32x32, 16x16 and 8x8, global
average pooling and a linear layer: 6n + 2 weighted layers, n = 3 for ResNet-20.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Shortcut = Literal["A", "B"]


class ZeroPad(nn.Module):
    """Shortcut A: every second row and column, the new channels zero. Has no parameters."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.extra = out_channels - channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))


def projection(channels: int, out_channels: int) -> nn.Module:
    """Shortcut B: a 1x1 convolution of stride 2, normalised."""
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 1, stride=2, bias=False), nn.BatchNorm2d(out_channels)
    )


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; halves the image where the number of channels grows."""

    def __init__(self, channels: int, out_channels: int, shortcut: Shortcut) -> None:
        super().__init__()
        grows = out_channels != channels
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride=2 if grows else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if grows:
            self.shortcut = (ZeroPad if shortcut == "A" else projection)(channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """float32 [b, 3, 32, 32] -> logits [b, num_classes].

    Convolutions start from He's normal distribution, std = sqrt(2 / (k k out_channels)) (arXiv 1502.01852).

    Args:
        depth: 6n + 2.
        shortcut: where a stage begins, ``B`` projects and ``A`` pads with zeros. The paper's CIFAR networks
            are A's, 269,722 parameters at depth 20; B has 272,474.
    """

    def __init__(self, depth: int, num_classes: int = 10, shortcut: Shortcut = "B") -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth {depth}: it must be 6n + 2, such as 20, 32, 56 or 110")
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [16] + [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        self.blocks = nn.Sequential(*(Block(a, b, shortcut) for a, b in pairwise(widths)))
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            # On the meta device, where options are only checked, it would make torch load its compiler.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(x.mean((2, 3)))
