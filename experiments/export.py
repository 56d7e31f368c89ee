"""Write the averaged model of a run as a plain state_dict, from its newest checkpoint. Needs no MPI.

    python -m gossip export runs/dcd8 --out model.pt
    torch.load("model.pt", weights_only=True)

Parameters are the mean over all ranks, summed in float64. Batch norm statistics come from where the run's
--bn says: from training images (recompute), the mean of the ranks' (average), or rank 0's (local).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import gossip
from experiments import config, evaluate
from experiments.runfolder import RunFolder
from experiments.runs import Run
from experiments.workloads.images import Images
from gossip import checkpoint, files

State = Mapping[str, Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m gossip export``."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder (--out of experiments.train)")
    add("--out", type=Path, metavar="FILE", help="the file to write (exported.pt in the run folder)")
    add(
        "--bn",
        choices=("recompute", "average", "local"),
        help="batch norm statistics; recompute reads the data set (the run's own)",
    )
    add("--data-dir", metavar="DIR", help="where the data set is (the run's own)")


def run(args: argparse.Namespace) -> None:
    """Write the file, and say what is in it."""
    settings = config.parse(config.flags(Run.read(args.run).config, args.run / "config.toml"))
    settings.bn = args.bn or settings.bn
    settings.data_dir = args.data_dir or settings.data_dir
    step, nodes, states = checkpoint.every_rank(RunFolder(args.run).checkpoints)
    average = mean((state["model"] for state in states), own_statistics=settings.bn == "local")
    if not any(map(_is_statistic, average)):
        statistics = "none"
    elif settings.bn == "recompute":
        average = with_recomputed_statistics(average, settings, nodes)
        statistics = f"from {evaluate.BN_IMAGES} augmented training images"
    else:
        statistics = "rank 0's" if settings.bn == "local" else "the mean of the ranks'"
    out = args.out or args.run / "exported.pt"
    files.make(out.parent)
    files.replace(out, lambda file: torch.save(dict(average), file))
    print(f"{out}: step {step}, the mean of {nodes} nodes; batch norm statistics: {statistics}")


def mean(states: Iterable[State], own_statistics: bool) -> dict[str, Tensor]:
    """The mean of the ranks' model states, in their dtypes.

    Whole numbers (batch counters), and with `own_statistics` those of batch norm, are rank 0's.
    """
    first: dict[str, Tensor] = {}
    total: dict[str, Tensor] = {}
    count = 0
    for state in states:
        count += 1
        if not first:
            first = {name: x.contiguous() for name, x in state.items()}
            total = {name: torch.zeros(x.shape, dtype=torch.float64) for name, x in first.items()}
        for name, x in state.items():
            total[name] += x
    return {
        name: x
        if not x.is_floating_point() or (own_statistics and _is_statistic(name))
        else (total[name] / count).to(x.dtype)
        for name, x in first.items()
    }


def with_recomputed_statistics(average: State, args: argparse.Namespace, nodes: int) -> dict[str, Tensor]:
    """`average` with statistics as the run's own tests computed them, each node from its share."""
    images = Images.load(args, gossip.world())

    def node() -> dict[str, Tensor]:
        model = images.build_model()
        model.load_state_dict(average)
        images.recompute_statistics(model, torch.device("cpu"), gossip.world())
        return {name: x.detach().contiguous() for name, x in model.state_dict().items()}

    result: dict[str, Tensor] = gossip.launch(node, nodes)[0]
    return result


def _is_statistic(name: str) -> bool:
    return name.rpartition(".")[2] in ("running_mean", "running_var")
