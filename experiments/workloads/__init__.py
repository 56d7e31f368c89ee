"""What can be trained: images or text. ``--dataset`` says which."""

from __future__ import annotations

import argparse

from experiments import data
from experiments.workloads.base import Loader, Workload
from experiments.workloads.images import Images
from experiments.workloads.text import TextWorkload
from gossip.errors import UsageError

__all__ = ["WORKLOADS", "Loader", "Workload", "settle", "workload_of"]

WORKLOADS: tuple[type[Workload], ...] = (Images, TextWorkload)


def workload_of(dataset: str) -> type[Workload]:
    """The workload of the data set that the spec `dataset` names. Raises `UsageError`: there is none."""
    return TextWorkload if data.name_of(dataset) == "text" else Images


def settle(args: argparse.Namespace) -> argparse.Namespace:
    """`args` with the defaults of its workload, those of ``--model`` included, where nothing was given.

    Raises:
        UsageError: an option that is of another workload and would do nothing.
    """
    workload = workload_of(args.dataset)
    for other in WORKLOADS:
        for name in other.defaults.keys() - workload.defaults.keys():
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for {other.noun}, and --dataset {args.dataset} is "
                    f"{workload.noun}: leave it out"
                )
    absent = {name: value for name, value in workload.defaults.items() if getattr(args, name) is None}
    return argparse.Namespace(**(vars(args) | absent))
