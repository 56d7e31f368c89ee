"""The options of `gossip.join` on a command line."""

from __future__ import annotations

import argparse
import inspect

import pytest

import gossip


def _parse(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    gossip.add_arguments(parser)
    return gossip.join_options(parser.parse_args(words))


def test_flags_are_joins_options_with_its_defaults() -> None:
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(gossip.join).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert _parse() == keywords


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--algorithm", "dcd:every=4"], "algorithm", "dcd:every=4"),
        (["--topology=torus:2x4"], "topology", "torus:2x4"),
        (["--compressor", "qsgd:bits=8"], "compressor", "qsgd:bits=8"),
        (["--weights", "lazy"], "weights", "lazy"),
        (["--no-overlap"], "overlap", False),
        (["--overlap"], "overlap", True),
        (["--progress", "thread"], "progress", "thread"),
        (["--bucket-mb", "0.5"], "bucket_mb", 0.5),
        (["--order", "priority"], "order", "priority"),
        (["--trace", "run.json.gz"], "trace", "run.json.gz"),
        (["--timeout", "20"], "timeout", 20.0),
        (["--device", "cuda:1"], "device", "cuda:1"),
        (["--seed", "7"], "seed", 7),
    ],
)
def test_each_flag_reaches_join(words: list[str], name: str, value: object) -> None:
    assert _parse(*words) == {**_parse(), name: value}


def test_a_script_keeps_its_own_flags() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    gossip.add_arguments(parser)
    args = parser.parse_args(["--epochs", "3", "--seed", "1"])
    assert args.epochs == 3 and "epochs" not in gossip.join_options(args)
