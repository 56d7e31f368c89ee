"""VGG networks for 32x32 images (Simonyan & Zisserman 2014, arXiv 1409.1556, table 1: columns A, D and E).

3x3 convolutions in five stages, each with batch normalisation and ReLU, as is usual on CIFAR; a stage ends
with a 2x2 maximum, so that 512 channels of one pixel are left for the head.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 512)
DEPTHS = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each stage, by depth. The name counts three linear layers, the ImageNet head."""


class VGG(nn.Module):
    """float32 [b, 3, 32, 32] -> logits [b, num_classes].

    Convolutions start from He's normal distribution, std = sqrt(2 / (k k out_channels)) (arXiv 1502.01852).

    Args:
        depth: 11, 16 or 19.
        head: units of two hidden linear layers with ReLU and dropout, 4096 in the paper, which then hold more
            than half of VGG-16's parameters; None leaves one linear layer, as is usual on CIFAR.
    """

    def __init__(self, depth: int, num_classes: int = 10, head: int | None = None) -> None:
        super().__init__()
        if depth not in DEPTHS:
            raise ValueError(f"depth {depth}: there are {', '.join(map(str, DEPTHS))}")
        if head is not None and head < 1:
            raise ValueError(f"head={head}: give hidden units, such as head=4096, or leave it out")
        self.features = nn.Sequential(*_stages(DEPTHS[depth]))
        self.classifier = nn.Sequential(*_classifier(WIDTHS[-1], head, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def _stages(depths: tuple[int, ...]) -> Iterator[nn.Module]:
    channels = 3
    for width, depth in zip(WIDTHS, depths, strict=True):
        for _ in range(depth):
            yield nn.Conv2d(channels, width, 3, padding=1, bias=False)
            yield nn.BatchNorm2d(width)
            yield nn.ReLU(inplace=True)
            channels = width
        yield nn.MaxPool2d(2)


def _classifier(features: int, head: int | None, num_classes: int) -> Iterator[nn.Module]:
    if head is not None:
        for inputs in (features, head):
            yield nn.Linear(inputs, head)
            yield nn.ReLU(inplace=True)
            yield nn.Dropout()
        features = head
    yield nn.Linear(features, num_classes)
