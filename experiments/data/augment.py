"""CIFAR's usual augmentation (He et al. 2015, arXiv 1512.03385, section 4.2), a whole batch at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def padding(h: int, w: int) -> int:
    """Pixels around an image of h x w: 4 for CIFAR's 32 x 32, and in proportion for reduced images."""
    return min(h, w) // 8


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each image at a random place after padding it by `padding` black pixels, and mirror half of them.

    Args:
        x: uint8 [b, c, h, w], on any device.
        generator: of the random numbers, on the CPU, so that every device gives the same images.

    Returns:
        uint8 [b, c, h, w], a new tensor on the device of `x`.
    """
    b, _, h, w = x.shape
    pad = padding(h, w)
    places = 2 * pad + 1  # in each direction
    draws = torch.randint(0, 2 * places**2, (b,), generator=generator).to(x.device)
    flip, place = draws % 2 == 1, draws // 2
    rows, columns = place // places, place % places
    windows = F.pad(x, (pad,) * 4).unfold(2, h, 1).unfold(3, w, 1)  # [b, c, places, places, h, w], a view
    crops = windows[torch.arange(b, device=x.device), :, rows, columns]
    return torch.where(flip[:, None, None, None], crops.flip(3), crops)


def normalize(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """``(x / 255 - mean) / std``, float32, of uint8 [b, c, h, w]; `mean` and `std` are float32 [c]."""
    shape = (1, -1, 1, 1)
    return x.float().div_(255).sub_(mean.to(x.device).view(shape)).div_(std.to(x.device).view(shape))
