from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.data.partition import PARTITIONS, split
from gossip.errors import UsageError

SPECS = ["iid", *(f"dirichlet:alpha={alpha}" for alpha in (1e-3, 0.1, 1, 100, 1e6))]
LABELS = np.random.default_rng(0).integers(0, 10, 4000)


def skew(parts: list[np.ndarray]) -> float:
    """Mean over nodes of the total variation distance between a node's labels and all labels: 0 is none."""
    total = np.bincount(LABELS, minlength=10) / len(LABELS)
    shares = [np.bincount(LABELS[part], minlength=10) / len(part) for part in parts]
    return float(np.mean([np.abs(share - total).sum() / 2 for share in shares]))


def test_all_partitions_are_tested() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(PARTITIONS)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 41])
@pytest.mark.parametrize("samples", [41, 100, 4000])
def test_parts_are_disjoint_complete_and_equally_large(spec: str, n: int, samples: int) -> None:
    parts = split(LABELS[:samples], n, spec, seed=1)
    assert len(parts) == n
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_decides(spec: str) -> None:
    first, again, other = (split(LABELS, 4, spec, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_smaller_alpha_means_more_skew(seed: int) -> None:
    alphas = (0.01, 0.3, 3, 1000)
    skews = [skew(split(LABELS, 8, f"dirichlet:alpha={alpha}", seed)) for alpha in alphas]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5


def test_large_alpha_is_like_iid() -> None:
    # Both differ from the whole only by sampling: about sqrt(K / part) = 0.14 at most.
    for spec in ("iid", "dirichlet:alpha=1e6"):
        assert skew(split(LABELS, 8, spec, seed=0)) < np.sqrt(10 / (len(LABELS) / 8))


def test_samples_of_a_class_are_drawn_at_random() -> None:
    """Not the first ones of the file to the first node."""
    part = split(np.zeros(1000, np.int64), 2, "dirichlet:alpha=1", seed=0)[0]
    assert abs(part.mean() - 499.5) < 5 * np.sqrt(1000**2 / 12 / 500)


def test_labels_may_be_a_tensor_and_any_integers() -> None:
    labels = torch.from_numpy(LABELS)
    for a, b in zip(
        split(labels * 100 - 7, 3, "dirichlet:0.1", 0), split(LABELS, 3, "dirichlet:0.1", 0), strict=True
    ):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("idd", "did you mean 'iid'"),
        ("iid:alpha=1", "no options"),
        ("dirichlet", "needs alpha"),
        ("dirichlet:alpha=0", "above 0"),
        ("dirichlet:alpha=-1", "above 0"),
        ("dirichlet:alpha=nan", "above 0"),
        ("dirichlet:alpha=much", "is not a number"),
        ("dirichlet:alpa=1", "did you mean 'alpha'"),
    ],
)
def test_bad_specs_are_refused(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        split(LABELS, 2, spec, 0)


def test_more_nodes_than_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="3 samples for 4 ranks"):
        split(LABELS[:3], 4, "iid", 0)
