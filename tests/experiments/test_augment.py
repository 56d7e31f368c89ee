from __future__ import annotations

import pytest
import torch
from torch import Tensor

from experiments.data.augment import augment, normalize, padding


def coordinates(b: int, h: int = 32, w: int = 32) -> Tensor:
    """`b` images whose channels hold row + 1, column + 1 and a constant, so that a crop can be read off."""
    image = torch.empty(3, h, w, dtype=torch.uint8)
    image[0] = torch.arange(1, h + 1)[:, None]
    image[1] = torch.arange(1, w + 1)
    image[2] = 7
    return image.expand(b, 3, h, w).clone()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def read(crop: Tensor) -> tuple[int, int, bool]:
    """Where a crop of `coordinates` starts, relative to the image, and whether it is mirrored."""
    middle = crop.shape[1] // 2
    row = int(crop[0, middle, middle]) - 1 - middle
    columns = crop[1, middle].long()
    mirrored = bool(columns[middle + 1] < columns[middle])
    columns = columns.flip(0) if mirrored else columns
    return row, int(columns[middle]) - 1 - middle, mirrored


@pytest.mark.parametrize(("h", "w"), [(32, 32), (24, 40)])
def test_every_image_is_a_padded_crop_perhaps_mirrored(h: int, w: int) -> None:
    x = coordinates(200, h, w)
    pad = padding(h, w)
    padded = torch.nn.functional.pad(x[0], (pad, pad, pad, pad))
    for crop in augment(x, generator()):
        row, column, mirrored = read(crop)
        expected = padded[:, row + pad :, column + pad :][:, :h, :w]
        assert torch.equal(crop, expected.flip(2) if mirrored else expected)


def test_all_places_are_equally_likely() -> None:
    draws = [read(crop) for crop in augment(coordinates(8100), generator())]
    cells = torch.zeros(9, 9, 2)
    for row, column, mirrored in draws:
        cells[row + 4, column + 4, int(mirrored)] += 1
    chi_squared = ((cells - 50) ** 2 / 50).sum()  # 161 degrees of freedom: mean 161, sd 18
    assert chi_squared < 161 + 5 * 18


def test_images_of_a_batch_get_their_own_draws_from_the_given_generator_alone() -> None:
    x = coordinates(16)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = augment(x, generator(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, augment(x, generator(1)))
    assert not torch.equal(first, augment(x, generator(2)))
    assert len({read(crop) for crop in first}) > 8


def test_the_input_is_left_alone() -> None:
    x = coordinates(4)
    result = augment(x, generator())
    assert result.dtype == torch.uint8 and result.is_contiguous()
    result.zero_()
    assert torch.equal(x, coordinates(4))


def test_normalized_images_have_mean_0_and_deviation_1() -> None:
    x = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=generator())
    scaled = x.double() / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0)
    y = normalize(x, mean.float(), std.float())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
