from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from experiments.models import IMAGE_MODELS, build
from gossip.errors import UsageError


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_every_model_maps_images_to_logits_and_learns(name: str) -> None:
    model = build(name, num_classes=7)
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("spec", "expected"), [("resnet8", 78_042), ("resnet20", 272_474), ("resnet20:shortcut=A", 269_722)]
)
def test_resnets_have_the_papers_numbers_of_parameters(spec: str, expected: int) -> None:
    assert parameters(build(spec)) == expected


@pytest.mark.parametrize("depth", [8, 20, 32, 56, 110])
def test_depth_counts_the_weighted_layers(depth: int) -> None:
    layers = [m for m in build(f"resnet{depth}:shortcut=A").modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth


@pytest.mark.parametrize("depth", [20, 32, 56, 110])
def test_a_projection_adds_two_convolutions_with_their_norms(depth: int) -> None:
    added = parameters(build(f"resnet{depth}")) - parameters(build(f"resnet{depth}:A"))
    assert added == (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)


@pytest.mark.parametrize("shortcut", "AB")
def test_stages_halve_the_image_and_double_the_channels(shortcut: str) -> None:
    model = build(f"resnet20:shortcut={shortcut}")
    shapes: list[tuple[int, ...]] = []
    for block in model.get_submodule("blocks").children():
        block.register_forward_hook(lambda module, x, y: shapes.append(tuple(y.shape[1:])))
    model(torch.randn(2, 3, 32, 32))
    assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def test_convolutions_start_from_hes_distribution() -> None:
    torch.manual_seed(0)
    for module in build("resnet56").modules():
        if isinstance(module, nn.Conv2d):
            w = module.weight
            std = math.sqrt(2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels))
            # The sample's standard deviation is within 5 of its own standard errors.
            assert abs(w.std().item() / std - 1) < 5 / math.sqrt(2 * w.numel())


WIDTHS = {  # of the convolutions, from table 1 of arXiv 1409.1556
    11: [64, 128, 256, 256, 512, 512, 512, 512],
    16: [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6,
    19: [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8,
}


@pytest.mark.parametrize("head", ["", ":head=4096", ":head=7"])
@pytest.mark.parametrize("depth", WIDTHS)
def test_vgg_has_the_parameters_of_its_layers(depth: int, head: str) -> None:
    widths = WIDTHS[depth]
    convolutions = sum(9 * a * b for a, b in pairwise([3, *widths]))
    norms = 2 * sum(widths)
    hidden = int(head.rpartition("=")[2]) if head else 0
    linear = (512 + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * 10 if head else (512 + 1) * 10
    with torch.device("meta"):
        model = build(f"vgg{depth}{head}")
    assert parameters(model) == convolutions + norms + linear
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth if head else len(layers) == depth - 2


def test_vgg16_is_the_one_of_the_literature() -> None:
    """VGG-16 with batch norm on CIFAR-10 has 14.72 million parameters, and 4,224 more with useless biases."""
    with torch.device("meta"):
        assert parameters(build("vgg16")) == 14_728_266 - sum(WIDTHS[16])


def test_a_large_head_drops_units_out_in_training_only() -> None:
    model, x = build("vgg11:head=64"), torch.randn(4, 3, 32, 32)
    model.get_submodule("features").eval()  # so that batch norm takes no part in what follows
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("hidden", [1, 10, 64])
def test_hidden_units_of_the_mlp(hidden: int) -> None:
    assert parameters(build(f"mlp:hidden={hidden}")) == (3072 + 1) * hidden + (hidden + 1) * 10


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("resent20", "did you mean 'resnet20'"),
        ("resnet20:shortcut=C", "A or B"),
        ("resnet20:hidden=3", "has no option 'hidden'"),
        ("mlp:hiden=3", "did you mean 'hidden'"),
        ("mlp:hidden=0", "at least 1 hidden unit"),
        ("vgg16:head=0", "give hidden units"),
        ("vgg13", "did you mean 'vgg1"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build(spec)
