"""A made-up data set of CIFAR-10's shape: no files, no download, the same images everywhere.

A class is a colour texture: an 8x8 tile, equal to its mirror image, repeated from a random offset. Averaged
over offsets every tile is grey, so no linear classifier can tell textures apart. Over it lie another class's
texture, a colour cast that depends on the class a little, and noise. In one image of twelve the other texture
is the stronger one, so about 92 % of the test images can be told. A linear classifier has only the cast to go
by and gets one of three right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from experiments.data.dataset import Dataset, channel_statistics

CLASSES = 10
TILE = 8
# Amplitudes in grey levels (of 255).
TEXTURE = (30.0, 60.0)
DISTRACTOR = 1.2  # of the texture's, at most; where it is above 1, only the cast is left
CAST = 10.0  # standard deviation over the classes, and as much again over the images of one
NOISE = 20.0


@dataclass(frozen=True)
class Synthetic:
    """Textures with distractors, colour casts and noise; see the module's text."""

    train: int = field(default=8192, metadata={"help": "number of training images"})
    test: int = field(default=2048, metadata={"help": "number of test images"})
    seed: int = field(default=0, metadata={"help": "of the textures and the images"})

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least 1 image")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: it must be 0 or larger")

    def prepare(self, data_dir: str) -> None:
        """Nothing to do."""

    def load(self, data_dir: str) -> Dataset:
        """Make the images; a pure function of the fields."""
        classes_rng, train_rng, test_rng = (
            np.random.default_rng(stream) for stream in np.random.SeedSequence(self.seed).spawn(3)
        )
        textures = _textures(classes_rng)
        casts = classes_rng.normal(0, CAST, (CLASSES, 3))
        casts -= casts.mean(0)
        train_x, train_y = _images(self.train, textures, casts, train_rng)
        test_x, test_y = _images(self.test, textures, casts, test_rng)
        names = tuple(f"texture {k}" for k in range(CLASSES))
        return Dataset(train_x, train_y, test_x, test_y, *channel_statistics(train_x), names)


def _textures(rng: np.random.Generator) -> np.ndarray:
    """Every class's texture from every offset: float32 [class, offset, 3 * 32 * 32], mean 0, variance 1."""
    k = np.fft.fftfreq(TILE) * TILE
    radius = np.hypot(k[:, None], k)
    smooth = (radius > 0) & (radius < 3)
    noise = rng.standard_normal((CLASSES, 3, TILE, TILE))
    tiles = np.fft.ifft2(np.fft.fft2(noise) * smooth).real
    tiles += tiles[..., ::-1]  # mirroring an image, as augmentation does, must not change its class
    tiles /= tiles.std((1, 2, 3), keepdims=True)
    offsets = [np.roll(tiles, (dy, dx), (2, 3)) for dy in range(TILE) for dx in range(TILE)]
    images = np.tile(np.stack(offsets, 1), (32 // TILE, 32 // TILE))
    return images.reshape(CLASSES, TILE * TILE, -1).astype(np.float32)


def _images(
    n: int, textures: np.ndarray, casts: np.ndarray, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """`n` images, uint8 [n, 3, 32, 32], and their classes, int64 [n], as equally frequent as can be."""
    y = rng.permutation(n) % CLASSES
    x = np.empty((n, 3 * 32 * 32), np.uint8)
    for start in range(0, n, 512):  # in pieces that stay in the cache
        own = y[start : start + 512]
        m = len(own)
        other = (own + rng.integers(1, CLASSES, m)) % CLASSES
        amplitude = rng.uniform(*TEXTURE, (m, 1)).astype(np.float32)
        ratio = (DISTRACTOR * rng.uniform(0, 1, (m, 1)) ** 2).astype(np.float32)
        cast = casts[own] + rng.normal(0, CAST, (m, 3))
        z = rng.standard_normal((m, 3 * 32 * 32), np.float32)
        z *= NOISE
        z += np.repeat(128 + cast, 32 * 32, axis=1).astype(np.float32)
        z += amplitude * textures[own, rng.integers(TILE * TILE, size=m)]
        z += amplitude * ratio * textures[other, rng.integers(TILE * TILE, size=m)]
        x[start : start + 512] = np.clip(np.rint(z, out=z), 0, 255, out=z)
    return torch.from_numpy(x.reshape(n, 3, 32, 32)), torch.from_numpy(y)
