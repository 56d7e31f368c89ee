from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments import data
from experiments.data.augment import normalize
from experiments.data.batches import Batches
from experiments.data.partition import split
from experiments.data.synthetic import CLASSES, Synthetic
from experiments.models import build
from gossip.errors import UsageError

SMALL = Synthetic(train=300, test=100)


def same_images(a: data.Dataset, b: data.Dataset) -> bool:
    return torch.equal(a.train_x, b.train_x) and torch.equal(a.test_x, b.test_x)


def test_it_looks_like_cifar10() -> None:
    dataset = data.load("synthetic:train=300,test=100", "no/such/folder")
    assert dataset.train_x.shape == (300, 3, 32, 32) and dataset.test_x.shape == (100, 3, 32, 32)
    assert dataset.train_x.dtype == dataset.test_x.dtype == torch.uint8
    assert dataset.train_y.dtype == dataset.test_y.dtype == torch.int64
    assert torch.equal(dataset.train_y.bincount(), torch.full((CLASSES,), 300 // CLASSES))
    assert len(dataset.classes) == CLASSES


def test_mean_and_deviation_are_those_of_the_training_images() -> None:
    dataset = Synthetic(train=50, test=1).load("")
    x = dataset.train_x.double() / 255
    torch.testing.assert_close(dataset.mean, x.mean((0, 2, 3)).float())
    torch.testing.assert_close(dataset.std, x.std((0, 2, 3), correction=0).float())


def test_the_seed_decides_and_the_sizes_do_not_change_the_textures() -> None:
    assert same_images(SMALL.load(""), SMALL.load(""))
    assert not same_images(SMALL.load(""), Synthetic(300, 100, seed=1).load(""))
    # Test images do not depend on how many training images there are, so accuracies can be compared.
    assert torch.equal(SMALL.load("").test_x, Synthetic(10, 100).load("").test_x)


def test_training_and_test_images_differ() -> None:
    dataset = Synthetic(100, 100).load("")
    train = {bytes(image.numpy().tobytes()) for image in dataset.train_x}
    assert not train & {bytes(image.numpy().tobytes()) for image in dataset.test_x}
    assert len(train) == 100


def test_making_it_is_quick() -> None:
    started = time.process_time()
    Synthetic().load("")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("synthetik", "did you mean 'synthetic'"),
        ("synthetic:train=0", "at least 1 image"),
        ("synthetic:seed=-1", "0 or larger"),
        ("synthetic:size=3", "synthetic has: train, test, seed"),
    ],
)
def test_bad_specs_are_refused(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        data.load(spec, "")


# -- difficulty --------------------------------------------------------------------------------------


def accuracy(model: nn.Module, dataset: data.Dataset) -> float:
    model.eval()
    with torch.no_grad():
        logits = torch.cat(
            [model(normalize(x, dataset.mean, dataset.std)) for x in dataset.test_x.split(256)]
        )
    return (logits.argmax(1) == dataset.test_y).float().mean().item()


def trained(model: nn.Module, dataset: data.Dataset, steps: int, batch_size: int, lr: float) -> float:
    """Test accuracy after `steps` of momentum SGD, annealed to 0."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts = split(dataset.train_y, 1, "iid", 0)
    batches = Batches(dataset.train_x, dataset.train_y, parts, 0, batch_size, dataset.mean, dataset.std)
    done = 0
    while done < steps:
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            done += 1
            if done == steps:
                break
    return accuracy(model, dataset)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, CLASSES))


def convolutional() -> nn.Module:
    """One hidden layer of 8x8 filters, averaged over the image."""
    return nn.Sequential(
        nn.Conv2d(3, 48, 8, stride=4, bias=False),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.BatchNorm1d(48),
        nn.Linear(48, CLASSES),
    )


def test_convolutions_learn_what_a_linear_classifier_cannot() -> None:
    dataset = data.load("synthetic", "")
    torch.manual_seed(0)
    flat = trained(linear(), dataset, steps=500, batch_size=32, lr=0.001)
    local = trained(convolutional(), dataset, steps=200, batch_size=32, lr=0.1)
    assert 0.2 < flat < 0.45, flat
    assert 0.8 < local < 0.96, local


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_resnet20_learns_it_in_a_couple_of_hundred_small_batches(seed: int) -> None:
    dataset = data.load("synthetic", "")
    torch.manual_seed(seed)
    reached = trained(build("resnet20"), dataset, steps=200, batch_size=16, lr=0.1)
    assert 0.5 < reached < 0.96, reached
