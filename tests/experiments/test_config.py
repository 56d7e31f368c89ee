"""Options: the command line over the file over the defaults; what does not fit is named with what to type."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

import gossip
from experiments import config
from gossip.errors import UsageError


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.toml", 'algorithm = "dcd"\nlr = 0.5\nbatch-size = 4\nnesterov = true\noverlap = false\n'
    )
    args = config.parse(["--config", file, "--lr", "0.25"])
    assert (args.algorithm, args.lr, args.batch_size, args.nesterov, args.overlap) == (
        "dcd",
        0.25,
        4,
        True,
        False,
    )
    assert args.epochs == config.parse([]).epochs
    assert config.parse(["--config", file, "--no-nesterov"]).nesterov is False


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--nodes", "3", "--steps", "7", "--epochs", "0.3", "--lr", "1e-05", "--no-overlap", "--nesterov"],
        ["--topology", 'file:a "b"\\c.txt', "--timeout", "12.5", "--bucket-mb", "0.5", "--amp", "bf16"],
    ],
)
def test_the_written_file_repeats_the_options(tmp_path: Path, flags: list[str]) -> None:
    args = config.parse(flags)
    file = write(tmp_path / "config.toml", config.to_toml(args))
    again = vars(config.parse(["--config", file])) | {"config": None}
    assert again == vars(args)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('algoritm = "dcd"', "unknown key 'algoritm'; did you mean algorithm"),
        ("zzz = 1", "unknown key 'zzz'; known keys: .*batch-size"),
        ("resume = true", "'resume' is about the command, and no part of a run: type --resume"),
        ('lr = "fast"', "--lr.*'fast' is not a number above 0"),
        ("batch_size = 0", "--batch-size.*0 is not a whole number above 0"),
        ("overlap = 1", "overlap = 1: write true or false"),
        ("lr = [1, 2]", "lr = .*: write a number or a string"),
        ("lr = true", "lr = True: write a number or a string"),
        ('bn = "none"', "--bn.*invalid choice: 'none'.*recompute"),
        ("lr = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path / "wrong.toml", text)
    with pytest.raises(UsageError, match=says) as caught:
        config.parse(["--config", file])
    assert "wrong.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--algoritm", "dcd"], "did you mean --algorithm"),
        (["--lr", "-1"], "--lr.*-1 is not a number above 0"),
        (["--momentum", "1"], "--momentum.*1 is not a number from 0"),
        (["--seed", "-1"], "--seed -1: give a whole number, 0 or more"),
        (["--nesterov", "--momentum", "0"], "--nesterov needs a --momentum above 0"),
        (["--resume"], "name it with --out"),
        (["--resume", "--out", "/nowhere"], "no run in /nowhere"),
        (["--out", ""], "name a folder"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: No such file"),
    ],
)
def test_a_wrong_flag_says_what_fits(flags: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        config.parse(flags)


def run_folder(tmp_path: Path) -> str:
    args = config.parse(["--lr", "0.5", "--algorithm", "dcd", "--epochs", "3"])
    write(tmp_path / "config.toml", config.to_toml(args))
    return str(tmp_path)


def test_resume_needs_nothing_but_the_folder(tmp_path: Path) -> None:
    args = config.parse(["--resume", "--out", run_folder(tmp_path)])
    assert (args.lr, args.algorithm, args.epochs, args.resume) == (0.5, "dcd", 3, True)


def test_resume_may_go_on_for_longer_but_not_become_another_run(tmp_path: Path) -> None:
    out = run_folder(tmp_path)
    assert config.parse(["--resume", "--out", out, "--epochs", "9", "--lr", "0.5"]).epochs == 9
    with pytest.raises(UsageError, match=r"started with --lr 0.5, not 0.1: leave --lr out"):
        config.parse(["--resume", "--out", out, "--lr", "0.1"])
    with pytest.raises(UsageError, match="give one of them"):
        config.parse(["--resume", "--overwrite", "--out", out])


def test_nodes_threads_and_folder_are_settled() -> None:
    args = config.resolve(
        config.parse(["--dataset", "synthetic:train=9", "--algorithm", "dcd"]), gossip.world()
    )
    assert args.nodes == 1 and args.threads >= 1
    assert args.out.startswith("runs/synthetic-resnet20-dcd-")


def test_nodes_and_mpirun_must_agree() -> None:
    world = Namespace(size=4)
    with pytest.raises(UsageError, match=r"mpirun started 4 ranks.*says 8: type mpirun -n 8, or --nodes 4"):
        config.resolve(config.parse(["--nodes", "8"]), world)  # type: ignore[arg-type]


@pytest.mark.parametrize(("period", "expected"), [(1, 12), (4, 3), (2.5, 4), (5, 2), (13, 0), (0.5, 12)])
def test_due_as_often_as_the_period_fits(period: float, expected: int) -> None:
    assert sum(config.due(step, period) for step in range(1, 13)) == expected


def test_help_shows_every_option_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        config.parse(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for action in config.parser()._actions:
        assert action.help and action.option_strings[0] in text
