"""The shapes of a model that can be trained here, as a file for ``python -m gossip bytes``.

python -m experiments.shapes resnet110:shortcut=A > resnet110.toml
python -m gossip bytes resnet110.toml --algorithm dgc
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from experiments import models
from gossip import cli, shapes


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    about = (__doc__ or "").partition("\n")[0]
    parser = cli.ArgumentParser(prog="python -m experiments.shapes", description=about)
    parser.add_argument("model", help=f"{', '.join(models.MODELS)}, with options as for experiments.train")
    parser.add_argument("--classes", type=int, default=10, metavar="N", help="of the data set (%(default)s)")
    args = parser.parse_args(argv)
    print(of(args.model, args.classes), end="")


def of(model: str, classes: int = 10) -> shapes.Shapes:
    """The shapes of ``--model`` for a data set of so many classes. Raises `UsageError`."""
    with torch.device("meta"):
        return shapes.of(models.build(model, classes), model)


if __name__ == "__main__":
    cli.run(main)
