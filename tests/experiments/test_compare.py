"""Runs side by side: who belongs together, the statistics, what is missing, and that no torch is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from experiments import compare
from experiments.curves import Spread, curve, group
from experiments.runs import FOR_SPEED, WITH_A_CODEC_OF_THEIR_OWN, find
from gossip.algorithms import ALGORITHMS
from gossip.errors import UsageError
from tests.experiments import fabricate

ROOT = Path(__file__).parents[2]


def three_groups(path: Path) -> None:
    """All-reduce and DCD with 2 and 3 seeds of which one diverged, and one run that was broken off."""
    for seed, accuracy in enumerate((75.0, 77.0), 1):
        fabricate.run(path / f"a{seed}", algorithm="allreduce", accuracy=accuracy, seed=seed)
    for seed, accuracy in enumerate((70.0, 73.0), 1):
        fabricate.run(path / f"b{seed}", compressor="qsgd:bits=4", accuracy=accuracy, seed=seed)
    fabricate.run(path / "b3", compressor="qsgd:bits=4", seed=3, diverged_at=15)
    fabricate.run(path / "c1", compressor="qsgd:bits=8", finished=False)


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [70.1, 71.5, 69.0]])
def test_mean_and_deviation(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None and spread.mean == pytest.approx(np.mean(values))
    assert spread.sd is None if len(values) == 1 else spread.sd == pytest.approx(np.std(values, ddof=1))


def test_a_value_that_is_not_finite_is_shown(tmp_path: Path) -> None:
    for seed, distance in ((1, 0.5), (2, float("inf"))):
        fabricate.run(tmp_path / str(seed), seed=seed, summary={"consensus_distance": distance})
    (row,) = compare.table(group(find([tmp_path])))[1]
    assert row[-1] == "inf ± nan"


def test_the_deviation_of_a_difference_is_what_simulation_gives() -> None:
    """Means of 3 and of 5 draws with deviations 2 and 1: their difference varies as `minus` says."""
    rng = np.random.default_rng(0)
    differences = rng.normal(0, 2, (20000, 3)).mean(1) - rng.normal(0, 1, (20000, 5)).mean(1)
    said = Spread(5.0, 2.0, 3).minus(Spread(4.0, 1.0, 5))
    assert said.mean == 1.0 and said.sd == pytest.approx(differences.std(), rel=0.03)


def test_runs_that_differ_in_the_seed_belong_together(tmp_path: Path) -> None:
    three_groups(tmp_path)
    groups = group(find([tmp_path]))
    assert [g.label for g in groups] == ["allreduce", "dcd qsgd:bits=4", "dcd qsgd:bits=8"]
    assert [len(g.runs) for g in groups] == [2, 3, 1]


def test_where_the_data_lie_is_no_difference_but_the_batch_is(tmp_path: Path) -> None:
    fabricate.run(tmp_path / "a", data_dir="/x", batch_size=8)
    fabricate.run(tmp_path / "b", data_dir="/y", batch_size=8, seed=2)
    fabricate.run(tmp_path / "c", data_dir="/y", batch_size=16)
    labels = [(g.label, len(g.runs)) for g in group(find([tmp_path]))]
    assert labels == [("dcd, batch-size 8", 2), ("dcd, batch-size 16", 1)]


def test_a_setting_that_only_one_has_is_told_of_both(tmp_path: Path) -> None:
    fabricate.run(tmp_path / "a", algorithm="dcd")
    fabricate.run(tmp_path / "b", algorithm="dcd", steps=40)
    assert [g.label for g in group(find([tmp_path]))] == ["dcd, no steps", "dcd, steps 40"]


def test_runs_of_other_data_share_no_row_and_the_label_says_so(tmp_path: Path) -> None:
    for name, data, seed in (("a1", "aaa", 1), ("a2", "aaa", 2), ("b1", "bbb", 1)):
        env = {"data": data, "virtual_nodes": True, "commit": name}
        fabricate.run(tmp_path / name, seed=seed, data_dir=name, env=env)
    labels = [(g.label, len(g.runs)) for g in group(find([tmp_path]))]
    assert labels == [("dcd, data aaa", 2), ("dcd, data bbb", 1)]


def test_a_copy_of_the_data_is_told_beside_the_numbers(tmp_path: Path) -> None:
    for seed in (1, 2):
        env = {"data": "aaa", "data_caveat": "not as published"}
        fabricate.run(tmp_path / str(seed), seed=seed, env=env)
    fabricate.run(tmp_path / "old", algorithm="ecd")
    told = list(compare.notes(group(find([tmp_path]))))
    assert told.count("Data: not as published.") == 1 and len(told) == 2


@pytest.mark.parametrize("told_in", ["env", "summary"])
def test_mpi_ranks_and_virtual_nodes_are_compared_and_not_mixed(tmp_path: Path, told_in: str) -> None:
    """In older runs the summary alone says which they were."""
    for name, virtual in (("mpi", False), ("virtual", True)):
        told: dict[str, Any] = {told_in: {"virtual_nodes": virtual}}
        fabricate.run(tmp_path / name, **told)
    labels = [g.label for g in group(find([tmp_path]))]
    assert labels == ["dcd, no virtual-nodes", "dcd, virtual-nodes"]


def test_runs_that_do_not_say_so_belong_together(tmp_path: Path) -> None:
    """The earliest runs, all under MPI, say nothing of it, and later ones do."""
    fabricate.run(tmp_path / "a")
    fabricate.run(tmp_path / "b", seed=2, summary={"virtual_nodes": False})
    assert [(g.label, len(g.runs)) for g in group(find([tmp_path]))] == [("dcd", 2)]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments" / "results").glob("*/compare.md")), ids=str)
def test_kept_runs_are_grouped_as_on_their_page(path: Path) -> None:
    groups = group(find([path.parent]))
    rows = re.findall(r"^\| .*\| (\[seed .*) \|$", path.read_text(), re.M)
    on_page = {frozenset(re.findall(r"\]\(([^)]+)\)", row)) for row in rows}
    assert on_page and on_page <= {frozenset(run.path.name for run in each.runs) for each in groups}


@pytest.mark.parametrize("key", ["progress", "order", "threads"])
def test_what_changes_step_times_keeps_runs_apart(tmp_path: Path, key: str) -> None:
    settings: list[dict[str, Any]] = [{key: "x", "seed": 1}, {key: "y", "seed": 2}]
    runs = [fabricate.run(tmp_path / each[key], **each) for each in settings]
    assert [g.label for g in group(runs)] == [f"dcd, {key} x", f"dcd, {key} y"]
    assert len(group(runs, alike=FOR_SPEED)) == 1


def test_the_table_states_seeds_results_and_differences(tmp_path: Path) -> None:
    three_groups(tmp_path)
    groups = group(find([tmp_path]))
    head, rows = compare.table(groups)
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    assert [c["seeds"] for c in cells] == ["2", "2 of 3", "0 of 1"]
    assert [c["test accuracy, %"] for c in cells] == ["76.00 ± 1.41", "71.50 ± 2.12", "unfinished"]
    sd = np.sqrt(2 / 2 + 4.5 / 2)
    assert [c["against the first"] for c in cells] == ["–", f"−4.50 ± {sd:.2f}", "–"]
    assert (cells[1]["sent, MB per step"], cells[1]["sent in all, GB"]) == ("1.000", f"{20 * 4 / 1024:.2f}")
    said = "\n".join(compare.notes(groups))
    assert "seed 3 diverged at step 15, rank 2" in said and "seed 1 has not finished" in said
    lines = compare.as_text(head, rows).splitlines()
    assert len({len(line.rstrip()) for line in lines[-3:-1]}) == 1, "columns are not aligned"


def test_the_page_links_runs_and_repeats_commands(tmp_path: Path) -> None:
    three_groups(tmp_path / "my (runs)")
    compare.run(Namespace(runs=[tmp_path / "my (runs)"], out=tmp_path / "page"))
    page = (tmp_path / "page" / "compare.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) >= 6 and all((tmp_path / "page" / unquote(link)).exists() for link in links)
    assert not any(re.search(r"[\s()]", link) for link in links)  # Markdown would end them there
    assert (
        "python -m experiments.train --algorithm=dcd --nodes=4 --seed=1 --compressor=qsgd:bits=4    #" in page
    )
    assert "--out" not in page and "--overwrite" not in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_command_is_of_a_run_that_has_ended_and_names_its_data(tmp_path: Path) -> None:
    fabricate.run(tmp_path / "runs" / "a", finished=False, data_dir="/local/copy", checkpoint_every=2)
    command = "mpirun -n 4 python -m experiments.train"
    fabricate.run(tmp_path / "runs" / "b", seed=2, data_dir="/local/copy", summary={"command": command})
    compare.run(Namespace(runs=[tmp_path / "runs"], out=tmp_path))
    page = (tmp_path / "compare.md").read_text()
    assert f"\n{command} --algorithm=dcd --nodes=4 --seed=2 --data-dir=/local/copy    #" in page


def test_a_compressor_that_is_so_anyway_is_no_difference(tmp_path: Path) -> None:
    fabricate.run(tmp_path / "a", algorithm="dpsgd")
    fabricate.run(tmp_path / "b", algorithm="dpsgd", compressor="identity", seed=2)
    fabricate.run(tmp_path / "c", algorithm="qsgd")
    fabricate.run(tmp_path / "d", algorithm="qsgd", compressor="identity", seed=2)
    assert [len(each.runs) for each in group(find([tmp_path]))] == [2, 1, 1]
    own = {name for name, method in ALGORITHMS.items() if method.default_compressor != "identity"}
    assert own == WITH_A_CODEC_OF_THEIR_OWN


def test_the_command_of_a_resumed_run_starts_it(tmp_path: Path) -> None:
    """Typed with --resume, a command says nothing of the run's settings."""
    folder = tmp_path / "runs" / "one"
    command = "mpirun -n 4 python -m experiments.train --out here --resume --steps 30"
    fabricate.run(folder, summary={"command": command})
    compare.run(Namespace(runs=[tmp_path / "runs"], out=tmp_path))
    page = (tmp_path / "compare.md").read_text()
    assert "\nmpirun -n 4 python -m experiments.train --algorithm=dcd --nodes=4 --seed=1    #" in page
    assert "--resume" not in page


def test_a_curve_is_the_mean_over_the_runs_that_got_there(tmp_path: Path) -> None:
    three_groups(tmp_path)
    line = curve(group(find([tmp_path]))[1], "test_accuracy")
    assert [(p.epoch, p.spread.count) for p in line.points] == [(1, 3), (2, 2)]
    assert [p.spread.mean for p in line.points] == pytest.approx([(60 + 63 + 60) / 3, 71.5])
    assert [p.sent_mb for p in line.points] == [10, 20] and [p.minutes for p in line.points] == [5, 10]
    assert line.diverged_at == (1.5,)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (lambda path: path.mkdir(), "holds no run"),
        (lambda path: fabricate.run(path / "a", finished=False), "no run has finished"),
        (lambda path: [fabricate.run(path / name) for name in "ab"], "are the same run"),
        (
            lambda path: [
                fabricate.run(path / "a"),
                fabricate.run(path / "b", dataset="text", accuracy=None, summary={"test_perplexity": 99.0}),
            ],
            "judged by different numbers",
        ),
    ],
)
def test_what_cannot_be_compared_is_named(tmp_path: Path, prepare: object, says: str) -> None:
    prepare(tmp_path / "runs")  # type: ignore[operator]
    for path in tmp_path.glob("runs/b/summary.json"):
        path.write_text(path.read_text().replace('"test_accuracy"', '"other"'))
    with pytest.raises(UsageError, match=says):
        compare.run(Namespace(runs=[tmp_path / "runs"], out=None))


def test_perplexity_is_read_like_accuracy(tmp_path: Path) -> None:
    for seed, value in ((1, 120.0), (2, 130.0)):
        made = fabricate.run(tmp_path / f"a{seed}", seed=seed, accuracy=value, dataset="text:vocab=50")
        for name in ("summary.json", "metrics.jsonl"):
            file = made.path / name
            file.write_text(file.read_text().replace("test_accuracy", "test_perplexity"))
    head, rows = compare.table(group(find([tmp_path])))
    assert dict(zip(head, rows[0], strict=True))["test perplexity"] == "125.00 ± 7.07"


def test_compare_answers_without_torch(tmp_path: Path) -> None:
    three_groups(tmp_path)
    code = "import sys, runpy\ntry:\n    runpy.run_module('gossip', run_name='__main__')\n"
    code += "finally:\n    print('torch' in sys.modules)"
    words = [sys.executable, "-c", code, "compare", str(tmp_path)]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "76.00 ± 1.41" in result.stdout and result.stdout.splitlines()[-1] == "False"


def test_the_other_columns_of_the_table(tmp_path: Path) -> None:
    for seed, local in ((1, 75.0), (2, 77.0)):
        fabricate.run(tmp_path / str(seed), seed=seed, summary={"test_accuracy_local_mean": local})
    head, (row,) = compare.table(group(find([tmp_path])))
    cells = dict(zip(head, row, strict=True))
    assert cells["single nodes"] == "76.00 ± 1.41" and cells["epochs"] == "2"
    assert cells["time, min"] == "10.0 ± 0.0" and cells["exposed wait, ms"] == "1.50 ± 0.00"
    assert cells["compression error"] == "0.01 ± 0" and cells["consensus distance"] == "0.05 ± 0"
