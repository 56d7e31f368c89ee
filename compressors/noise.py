"""The one source of randomness of all codecs: a 64-bit key in, random words out.

Nothing here reads or moves a global random generator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def random_words(n: int, key: int, device: torch.device | str = "cpu") -> Tensor:
    """int32 [n]: uniform 32-bit words that depend on (n, key, kind of device) only.

    On the CPU SFC64, whose raw stream does not change between numpy versions. (torch's CPU generator would be
    three times slower and uses 32 bits of its seed.)
    """
    device = torch.device(device)
    if device.type == "cpu":
        raw = np.random.SFC64(key & _MASK).random_raw((n + 1) // 2)
        return torch.from_numpy(raw.view(np.int32))[:n]
    generator = torch.Generator(device).manual_seed(key & _MASK)
    return torch.randint(-(1 << 31), 1 << 31, (n,), dtype=torch.int32, device=device, generator=generator)


def rounding_noise(n: int, key: int, device: torch.device | str = "cpu") -> Tensor:
    """float32 [n], uniform on [-1/2, 1/2]: round(y + noise) is y in expectation, and 0 stays 0."""
    return random_words(n, key, device).to(torch.float32).mul_(2.0**-32)


def derive_key(key: int, index: int) -> int:
    """An independent 64-bit key for the `index`-th inner use of `key` (splitmix64's finaliser)."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
