"""Evaluation counts every sample once on any number of nodes, and leaves training as it was."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossip
from experiments import evaluate


class Net(nn.Module):
    """Batch norm, and dropout that would draw random numbers if it were on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dropout(torch.relu(self.bn(self.conv(x))).mean((2, 3))))


def images(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 256, (n, 3, 8, 8), generator=generator).to(torch.uint8)
    return x, torch.randint(0, 3, (n,), generator=generator)


def forward(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.float() / 255)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 8])
def test_accuracy_is_that_of_a_single_process(nodes: int) -> None:
    x, y = images(10)
    alone = evaluate.score(net(), x, y, forward)

    def node() -> evaluate.Score:
        return evaluate.score_together(net(), x, y, forward, gossip.world())

    for together in gossip.launch(node, nodes):
        assert (together.correct, together.count) == (alone.correct, 10)
        assert together.accuracy == alone.accuracy
        assert together.loss == pytest.approx(alone.loss)


def train_node(batch_norm: str, steps: int = 3) -> dict[str, Any]:
    """Train a little on data of one's own, evaluate, and tell what evaluation has touched."""
    rank = gossip.world().rank
    model = Net()
    model.dropout.eval()  # a mode of the user's own choice inside a training model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    node = gossip.join(model, optimizer, algorithm="dcd")
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        forward(model, torch.randint(0, 256, (6, 3, 8, 8), generator=generator)).square().sum().backward()
        optimizer.step()
    x, y = images(40)

    def snapshot() -> tuple[Any, ...]:
        gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
        tensors = copy.deepcopy({**model.state_dict(), **gradients})
        modes = [module.training for module in model.modules()]
        streams = torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()
        return tensors, modes, streams, node.world.bytes_sent

    before = snapshot()
    average = evaluate.averaged_image_model(node, model, batch_norm, x, forward)
    score = evaluate.score_together(average, x, y, forward, node.world)
    own = evaluate.score(model, x, y, forward)
    after = snapshot()
    node.finish()
    return {
        "before": before,
        "after": after,
        "average": average.state_dict(),
        "own": model.state_dict(),
        "scores": (score, own),
        "modes": [module.training for module in average.modules()],
    }


@pytest.mark.parametrize("batch_norm", ["recompute", "average", "local"])
def test_training_is_left_as_it_was(batch_norm: str) -> None:
    for result in gossip.launch(train_node, 3, batch_norm):
        (tensors, *rest), (tensors_after, *rest_after) = result["before"], result["after"]
        assert rest == rest_after
        for name, value in tensors.items():
            assert torch.equal(value, tensors_after[name]), name
        assert not any(result["modes"])


@pytest.mark.parametrize("batch_norm", ["recompute", "average", "local"])
def test_the_average_is_that_of_the_parameters(batch_norm: str) -> None:
    results = gossip.launch(train_node, 3, batch_norm)
    for name, parameter in Net().named_parameters():
        mean = torch.stack([result["own"][name].double() for result in results]).mean(0)
        for result in results:
            torch.testing.assert_close(result["average"][name].double(), mean, atol=1e-6, rtol=1e-5)
            assert result["average"][name].shape == parameter.shape


def test_statistics_follow_the_policy() -> None:
    names = ("bn.running_mean", "bn.running_var")
    for name in names:
        local = gossip.launch(train_node, 3, "local")
        assert all(torch.equal(r["average"][name], r["own"][name]) for r in local)
        assert not torch.equal(local[0]["own"][name], local[1]["own"][name])

        average = gossip.launch(train_node, 3, "average")
        mean = torch.stack([r["own"][name] for r in average]).mean(0)
        assert all(torch.allclose(r["average"][name], mean, rtol=1e-5) for r in average)

        recomputed = gossip.launch(train_node, 3, "recompute")
        assert all(torch.equal(r["average"][name], recomputed[0]["average"][name]) for r in recomputed)
        assert not torch.allclose(recomputed[0]["average"][name], mean, rtol=1e-2)


def test_recomputed_statistics_are_those_of_the_images() -> None:
    """With one batch per node, the mean over the batches of their mean and (unbiased) variance."""
    x, _ = images(8)

    def node() -> tuple[Tensor, Tensor]:
        model = net()
        model.bn.running_mean.fill_(9.0)  # type: ignore[union-attr]
        evaluate.recompute_batch_norm(model, x, forward, gossip.world())
        assert model.bn.momentum == 0.1
        return model.bn.running_mean, model.bn.running_var  # type: ignore[return-value]

    chosen = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        shares = [net().conv(x[chosen[rank::2]].float() / 255) for rank in range(2)]
    mean = torch.stack([h.mean((0, 2, 3)) for h in shares]).mean(0)
    variance = torch.stack([h.transpose(0, 1).flatten(1).var(1) for h in shares]).mean(0)
    for running_mean, running_var in gossip.launch(node, 2):
        torch.testing.assert_close(running_mean, mean)
        torch.testing.assert_close(running_var, variance)


def test_more_nodes_than_images() -> None:
    x, _ = images(2)

    def node() -> Tensor:
        model = net()
        evaluate.recompute_batch_norm(model, x, forward, gossip.world())
        assert model.bn.running_mean is not None
        return model.bn.running_mean

    first, *others = gossip.launch(node, 5)
    assert torch.isfinite(first).all() and all(torch.equal(first, other) for other in others)


def test_every_batch_counts_the_same_though_ranks_have_more_or_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "BN_BATCH", 2)
    x, _ = images(5)  # rank 0 has three images in two batches, rank 1 two in one

    def node() -> Tensor:
        model = net()
        evaluate.recompute_batch_norm(model, x, forward, gossip.world())
        return model.bn.running_mean  # type: ignore[return-value]

    chosen = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        parts = [part for rank in range(2) for part in chosen[rank::2].chunk(2 - rank)]
        means = [net().conv(x[part].float() / 255).mean((0, 2, 3)) for part in parts]
    assert [len(part) for part in parts] == [2, 1, 2]
    for mean in gossip.launch(node, 2):
        torch.testing.assert_close(mean, torch.stack(means).mean(0))
