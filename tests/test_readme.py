"""The README stays true: its snippets run, its commands and links exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import gossip
from experiments import config
from gossip.algorithms import ALGORITHMS
from tests.training import train

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def snippet(language: str, containing: str) -> str:
    found = [s for s in re.findall(rf"```{language}\n(.*?)```", README, re.S) if containing in s]
    assert len(found) == 1, f"{len(found)} {language} snippets contain {containing!r}"
    return found[0]


def run(code_root: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(code_root), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *command],
        cwd=code_root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages and the contract tests, to be changed as the README says."""
    for part in ("gossip", "topologies", "compressors", "experiments", "tests", "setup.cfg"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, tmp_path / part)
    return tmp_path


def test_a_new_compressor_is_one_file_and_one_import(tree: Path) -> None:
    (tree / "compressors" / "int8.py").write_text(snippet("python", "class Int8"))
    line = re.search(r"gets the line `(from \. import int8)`", README)
    assert line is not None
    with (tree / "compressors" / "__init__.py").open("a") as file:
        file.write(line[1] + "\n")
    assert "int8" in run(tree, "-m", "gossip", "list", "compressors")
    output = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/compressors", "-k", "int8")
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None and int(passed[1]) >= 10
    program = "import gossip; from tests.training import train; "
    program += "gossip.launch(lambda: train(algorithm='choco', compressor='int8'), 3)"
    run(tree, "-c", program)


def test_a_new_topology_is_one_function(tree: Path) -> None:
    (tree / "topologies" / "chordal.py").write_text(snippet("python", "def chordal"))
    with (tree / "topologies" / "__init__.py").open("a") as file:
        file.write("from . import chordal\n")
    program = "from gossip import spec; graph = spec.make_topology('chordal:reach=3', 8, 'metropolis'); "
    run(tree, "-c", program + "assert len(graph.in_neighbors(0)) == 6")


def test_a_new_method_is_a_generator() -> None:
    try:
        exec(snippet("python", "class MyDCD"), {"__name__": "snippet"})
        mine, dcd = (
            [x for x, _ in gossip.launch(lambda a=a: train(algorithm=a, compressor="qsgd"), 3)]
            for a in ("my-dcd", "dcd")
        )
        assert all(torch.equal(x, y) for x, y in zip(mine, dcd, strict=True))
    finally:
        ALGORITHMS.pop("my-dcd", None)


def test_the_loop_in_the_diff_runs() -> None:
    diff = snippet("diff", "gossip.join")
    loop = "\n".join(line[2:] for line in diff.splitlines() if not line.startswith("-"))
    data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
    names = {"torch": torch, "gossip": gossip, "dataset": data, "loss_fn": nn.CrossEntropyLoss()}

    def run_loop() -> int:
        scope = {**names, "Net": lambda: nn.Linear(4, 3)}
        exec(loop, scope)
        node = scope["node"]
        assert isinstance(node, gossip.Session)
        node.finish()
        return node.round

    assert gossip.launch(run_loop, 2) == [1, 1]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if "experiments.train" in line]


@pytest.mark.parametrize("line", commands())
def test_training_commands_are_accepted(line: str) -> None:
    words = shlex.split(line)
    config.parse(words[words.index("experiments.train") + 1 :])


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert links
    for link in links:
        assert link.startswith("http") or (ROOT / link).exists(), link
