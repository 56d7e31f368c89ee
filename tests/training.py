"""A small training problem that the framework's tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gossip


class Net(nn.Module):
    """A convolution, a batch norm and two linear layers: conv strides, buffers and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 16, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.conv(x))).flatten(1)
        return self.out(torch.relu(self.hidden(h)))


def batches(rank: int, steps: int, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    """Minibatches that differ by rank, the same on every call."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return [
        (
            torch.randn(size, 1, 4, 4, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for _ in range(steps)
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters, in registration order."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def backward_in_parts(node: gossip.Session, model: nn.Module, x: Tensor, y: Tensor, parts: int) -> None:
    """Accumulate the gradient of the mean loss over equal parts of a batch; exchange with the last."""
    for i, (part, labels) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
        loss = nn.functional.cross_entropy(model(part), labels) / parts
        if i < parts - 1:
            with node.no_sync():
                loss.backward()
        else:
            loss.backward()


def train(
    steps: int = 8,
    *,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    model: nn.Module | None = None,
    before_step: Callable[[gossip.Session, nn.Module], None] | None = None,
    **options: Any,
) -> tuple[Tensor, gossip.Session]:
    """Train `Net` on this node; its final parameters, and the finished session."""
    torch.manual_seed(gossip.world().rank)  # join must make the ranks equal
    model = Net() if model is None else model
    optimizer = make_optimizer(model)
    node = gossip.join(model, optimizer, **options)
    for x, y in batches(node.rank, steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if before_step is not None:
            before_step(node, model)
        optimizer.step()
    node.finish()
    return flat(model), node
