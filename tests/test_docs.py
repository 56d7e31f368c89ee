"""The pages in docs stay true: commands are accepted, links lead somewhere, the sweep file is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from experiments import config
from experiments.sweep.grid import SweepFile
from gossip import cli
from gossip.__main__ import COMMANDS, _load

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def commands() -> list[str]:
    """Every whole `python -m …` of ours in a page, after mpirun and srun with their options."""
    found = []
    for page in PAGES:
        for line in page.read_text().replace("\\\n", " ").splitlines():
            for start in ("python -m gossip ", "python -m experiments.train "):
                command = line.strip().partition(start)[2].partition("#")[0].rstrip("&` ")
                if start in line and "`" not in command and "…" not in command and "$" not in command:
                    found.append(start + command)
    return [command for command in found if not command.endswith((" gossip ", "FILE.toml", "RUN"))]


@pytest.mark.parametrize("command", commands())
def test_commands_are_accepted(command: str) -> None:
    _, _, module, *words = shlex.split(re.sub(r"  +.*", "", command))
    if module == "experiments.train":
        config.parse(words)
        return
    name, *rest = words
    parser = cli.ArgumentParser(prog=name)
    _load(name, COMMANDS[name][0]).add_arguments(parser)
    parser.parse_args(rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("http") or (DOCS / link).exists(), link


def test_the_sweep_file_in_the_page_is_one(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "experiments.md").read_text(), re.S)
    assert len(blocks) == 1
    (tmp_path / "grid.toml").write_text(blocks[0])
    points = SweepFile.read(tmp_path / "grid.toml").points()
    assert len(points) == 3 * 2 * (2 + 4)
    assert "dcd-qsgd-bits8-nodes16-seed1" in {point.name for point in points}
    assert SweepFile.read(tmp_path / "grid.toml", full=True).points()[0].args.epochs == 300
