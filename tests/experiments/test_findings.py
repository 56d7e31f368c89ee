"""The findings: every statement is judged by the stated bounds, in all places, and explained by numbers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.findings import __main__ as command
from experiments.findings import pictures
from experiments.findings.cells import CODECS, FILE, NODES, Cell, points, seeds
from experiments.findings.page import keep, page
from experiments.findings.statements import KOLOSKOVA, STATEMENTS, Findings, Verdict, judge
from experiments.runs import Run, find
from experiments.sweep.grid import Point, SweepFile
from gossip.errors import UsageError
from tests.experiments import fabricate

Results = Mapping[tuple[str, int], float | None]
"""Accuracies by algorithm and bits; None: it diverged."""

PUBLISHED: Results = {
    ("allreduce", 32): 92.64,
    ("dpsgd", 32): 92.64,
    ("naive", 8): 92.0,
    ("naive", 4): 5.0,
    ("dcd", 8): 92.36,
    ("dcd", 4): 23.56,
    ("ecd", 8): 59.11,
    ("ecd", 4): None,
    ("choco", 8): 92.30,
    ("choco", 4): 91.92,
}
"""Koloskova et al. 2020, Table 1, for its methods; naive as Tang et al. 2018 tell of it."""

RING: Results = {
    ("allreduce", 32): 70.0,
    ("dpsgd", 32): 66.0,
    ("naive", 8): 65.0,
    ("naive", 4): 62.0,
    ("dcd", 8): 65.5,
    ("dcd", 4): 60.0,
    ("ecd", 8): 63.0,
    ("ecd", 4): None,
    ("choco", 8): 69.0,
    ("choco", 4): 66.5,
}
"""As they may be on a small ring, where exact gossip itself is 4 points behind all-reduce."""


def fabricated(
    path: Path,
    results: Results,
    seeds: Collection[int] = (1, 2, 3),
    nodes: Collection[int] = NODES,
    diverged_at: int = 15,
    **changes: Any,
) -> list[Run]:
    """The runs of the grid that `results`, `seeds` and `nodes` tell of, with `changes` of their settings."""
    runs = []
    for point in points():
        bits, _ = CODECS[point.args.compressor]
        method = (point.args.algorithm, bits)
        if method in results and point.args.seed in seeds and point.nodes in nodes:
            accuracy = results[method]
            runs.append(
                fabricate.run(
                    path / point.name,
                    accuracy=None if accuracy is None else accuracy + 0.01 * point.args.seed,
                    diverged_at=diverged_at if accuracy is None else None,
                    summary={"compression_error": {8: 0.01, 4: 0.5, 32: None}[bits]},
                    **_underscored(point) | changes,
                )
            )
    return runs


def _underscored(point: Point) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in point.settings.items()}


@pytest.fixture(scope="module")
def as_published(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return Findings.of(fabricated(tmp_path_factory.mktemp("published"), PUBLISHED))


@pytest.fixture(scope="module")
def on_a_ring(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return Findings.of(fabricated(tmp_path_factory.mktemp("ring"), RING))


def test_the_grid_is_what_the_statements_are_about() -> None:
    assert len(points()) == 2 * (2 + 4 * 4) * 3
    cells = {(p.nodes, p.args.algorithm, p.args.compressor) for p in points()}
    assert {nodes for nodes, _, _ in cells} == set(NODES)
    assert {codec for _, _, codec in cells} == set(CODECS)
    assert {s.algorithm for s in STATEMENTS} | {"allreduce"} == {algorithm for _, algorithm, _ in cells}
    assert seeds() == {1, 2, 3}


# -- which runs count ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epochs": 5}, "--epochs=2.0 in place of --epochs=5.0"),
        ({"lr": 0.2}, "--lr=0.1 in place of --lr=0.2"),
        ({"model": "resnet20"}, "--model=resnet8 in place of --model=resnet20"),
        ({"topology": "torus"}, "--topology=ring in place of --topology=torus"),
        ({"steps": 10}, "no --steps in place of --steps=10"),
        ({"seed": 4}, "--seed=1 in place of --seed=4"),
        ({"algorithm": "plump", "lr": 0.2}, "--lr=0.1 in place of --lr=0.2, --algorithm="),
    ],
)
def test_a_run_of_another_grid_is_named_with_what_differs(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    (run,) = fabricated(tmp_path, {("dpsgd", 32): 70.0}, seeds=[1], nodes=[8], **changes)
    with pytest.raises(UsageError, match=f"{run.path} is no run of .*findings.toml.* has .*{told}"):
        Findings.of([run])


def test_a_run_in_full_size_is_another_even_before_it_has_ended(tmp_path: Path) -> None:
    full = SweepFile.read(FILE, full=True).points()[0]
    run = fabricate.run(tmp_path / full.name, finished=False, **_underscored(full))
    with pytest.raises(UsageError, match="--model=resnet8 in place of --model=resnet20"):
        Findings.of([run])


def test_where_the_data_were_and_what_is_for_speed_does_not_count(tmp_path: Path) -> None:
    runs = fabricated(tmp_path, {("dpsgd", 32): 70.0}, nodes=[8], data_dir="elsewhere", threads=2, timeout=9)
    assert Findings.of(runs).ended(Cell(8, "dpsgd")) == seeds()


def test_the_same_run_twice_is_an_error(tmp_path: Path) -> None:
    for where in ("a", "b"):
        fabricated(tmp_path / where, {("dpsgd", 32): 70.0}, seeds=[1], nodes=[8])
    with pytest.raises(UsageError, match="are the same run"):
        Findings.of(find([tmp_path / "a", tmp_path / "b"]))


def test_the_page_tells_which_data_were_read_and_different_ones_are_not_compared(tmp_path: Path) -> None:
    runs = fabricated(tmp_path, PUBLISHED, nodes=[8])
    silent = Findings.of(runs)
    assert "Which copy of the data they read, the runs do not say." in page(silent, judge(silent), {})
    _say_data(runs[0], "abc")
    findings = Findings.of(find([tmp_path]))
    assert f"The data's digest is `abc`; {len(runs) - 1} runs do not say theirs." in page(findings, [], {})
    _say_data(runs[1], "def")
    with pytest.raises(UsageError, match=r"different data.*on abc, .*on def"):
        Findings.of(find([tmp_path]))


def _say_data(run: Run, digest: str) -> None:
    (run.path / "env.json").write_text(json.dumps({"data": digest}))


# -- how they are judged ---------------------------------------------------------------------------


def test_statements_hold_by_the_published_numbers(as_published: Findings) -> None:
    """Tang et al. contradict Table 1 on ECD at 8 bits alone: there it is much worse, and they saw no loss."""
    verdicts = judge(as_published)
    assert len(verdicts) == 2 + 4 * 5 + 6
    wrong = {verdict.statement.text for verdict in verdicts if not verdict.held}
    assert wrong == {"ECD with 8 bits converges like all-reduce"}
    assert {verdict.against for verdict in verdicts} == {"allreduce"}


@pytest.mark.parametrize(
    ("gap", "behaviour"),
    [(-3, "matches"), (1.9, "matches"), (2.1, "worse"), (4.9, "worse"), (5.1, "much worse"), (50.5, "fails")],
)
def test_bounds(tmp_path: Path, gap: float, behaviour: str) -> None:
    runs = fabricated(tmp_path, {("allreduce", 32): 70.0, ("dpsgd", 32): 70.0 - gap}, nodes=[8])
    assert Findings.of(runs).behaviour(Cell(8, "dpsgd")) == behaviour


@pytest.mark.parametrize(("diverged", "behaviour"), [(1, "worse"), (2, "fails")])
def test_one_diverged_seed_of_three_is_told_and_two_are_failure(
    tmp_path: Path, diverged: int, behaviour: str
) -> None:
    lost, well = (1, 2, 3)[:diverged], (1, 2, 3)[diverged:]
    runs = fabricated(tmp_path, {("allreduce", 32): 70.0}, nodes=[8])
    runs += fabricated(tmp_path, {("dpsgd", 32): None}, seeds=lost, nodes=[8])
    runs += fabricated(tmp_path, {("dpsgd", 32): 70.0}, seeds=well, nodes=[8])
    assert Findings.of(runs).behaviour(Cell(8, "dpsgd")) == behaviour


def test_seeds_of_the_file_are_missing_even_if_no_run_has_them(tmp_path: Path) -> None:
    findings = Findings.of(fabricated(tmp_path, PUBLISHED, seeds=[1]))
    verdicts = judge(findings)
    assert {verdict.held for verdict in verdicts} == {None}
    text = page(findings, verdicts, {})
    assert "held**" not in text and "None is judged yet." in text
    assert "| open, 1 of 3 seeds: gap 0.28; to D-PSGD +0.28 |" in text
    assert "| 8 | ecd | 4 bit, max norm, block 512 | 1 of 3 | – | 1 of 1 diverged |" in text
    assert "36 of 108 runs are done" in " ".join(text.split())


@pytest.mark.parametrize("behind", [("allreduce", 32), ("dpsgd", 32), ("dcd", 4)])
def test_a_verdict_needs_all_seeds_of_the_method_and_of_what_it_is_judged_against(
    tmp_path: Path, behind: tuple[str, int]
) -> None:
    others = {method: accuracy for method, accuracy in RING.items() if method != behind}
    runs = fabricated(tmp_path, others, nodes=[8])
    runs += fabricated(tmp_path, {behind: RING[behind]}, seeds=[1, 2], nodes=[8])
    findings = Findings.of(runs)
    (statement,) = (s for s in STATEMENTS if s.text.startswith("DCD with 4 bits converges"))
    verdict = findings.judge(statement, Cell(8, "dcd", 4, "max"))
    assert verdict.word == "open"
    row = next(line for line in page(findings, [verdict], {}).splitlines() if line.startswith("| DCD with 4"))
    assert "| open, 2 of 3 seeds: gap" in row


@pytest.mark.parametrize("reference", ["allreduce", "dpsgd"])
def test_nothing_is_judged_by_exact_runs_that_fail(tmp_path: Path, reference: str) -> None:
    findings = Findings.of(fabricated(tmp_path, {**RING, (reference, 32): 12.0}, nodes=[8]))
    compressed = [v for v in judge(findings) if v.cell.nodes == 8 and v.cell.algorithm in ("dcd", "ecd")]
    assert {verdict.held for verdict in compressed} == {None}
    text = page(findings, compressed, {})
    assert "| open, what it is compared with does not converge itself: gap" in text
    assert "| open, what it is compared with does not converge itself: 3 of 3 diverged" in text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("D-PSGD converges like", "not held"),  # 66.0
        ("DCD with 8 bits converges like", "held against D-PSGD"),  # 65.5
        ("ECD with 8 bits converges like", "not held against D-PSGD"),  # 63.0
        ("naive gossip", "not held against D-PSGD"),  # 62.0: 8 points below all-reduce, 4 of them the ring's
        ("DCD with 4 bits converges, but", "held against D-PSGD"),  # 60.0
        ("ECD with 4 bits diverges", "held"),
        ("CHOCO with 8 bits", "held"),  # 69.0 matches all-reduce itself
        ("CHOCO with 4 bits", "held against D-PSGD"),  # 66.5
    ],
)
def test_where_exact_gossip_misses_the_bound_compression_is_judged_against_it(
    on_a_ring: Findings, text: str, word: str
) -> None:
    verdicts = [verdict for verdict in judge(on_a_ring) if verdict.statement.text.startswith(text)]
    assert {verdict.word for verdict in verdicts} == {word}


# -- the page --------------------------------------------------------------------------------------


def explained(findings: Findings, verdict: Verdict) -> str:
    """The line of the page that explains `verdict`; it must be one."""
    (line,) = re.findall(r"^- \*.*", page(findings, [verdict], {}), re.M)
    return str(line)


def test_the_page_has_every_statement_with_numbers_and_explains_what_did_not_hold(
    as_published: Findings,
) -> None:
    verdicts = judge(as_published)
    text = page(as_published, verdicts, {})
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert sum(statement.text in line for line in tables for statement in STATEMENTS) >= len(STATEMENTS)
    wrong = [verdict for verdict in verdicts if verdict.held is False]
    assert text.count("**not held**: gap 33.53") == len(wrong)
    explanations = re.findall(r"^- \*.*", text, re.M)
    assert len(explanations) == len(wrong)
    assert all("α = 0.01 " in line for line in explanations)
    assert "6.83 times (1 − ρ)/(2μ) = 0.0732" in as_published.explanation(Cell(8, "dcd", 4, "l2"))
    assert "; to D-PSGD +0.28" in text and "D-PSGD, which sends 32 bits, has a gap of 0.00" in text
    names = re.findall(r"^\| \d+ \|.*\| ([\w.-]+) \|$", text, re.M)
    assert set(names) == {point.name.rsplit("-seed")[0] for point in points()}
    assert "108 of 108 runs are done, 18.0 hours" in " ".join(text.split())


def test_exact_methods_stand_in_no_column_or_row_of_a_norm(as_published: Findings) -> None:
    lines = page(as_published, judge(as_published), {}).splitlines()
    assert "| statement | source | messages | 8 nodes | 16 nodes |" in lines
    (row,) = (line for line in lines if line.startswith("| D-PSGD converges"))
    assert "| Lian et al. 2017 | 32 bit | **held**: gap 0.00" in row and "norm" not in row
    rows = [line for line in lines if line.startswith("| DCD with 8 bits converges")]
    assert [row.split(" | ")[2] for row in rows] == [
        "8 bit, max norm, block 512",
        "8 bit, l2 norm, per tensor",
    ]


def test_the_page_lists_what_is_different_here(as_published: Findings) -> None:
    text, about = page(as_published, [], {}), SweepFile.read(FILE).about
    assert about["source"] in text
    assert all(f"- {deviation}\n" in text for deviation in about["deviations"])
    assert "- the data directory may hold a copy of CIFAR-10 that is not the original (JPEG)" in text


def test_what_compression_adds_to_the_rings_gap_is_told(on_a_ring: Findings) -> None:
    verdicts = {(v.statement.text, v.cell.nodes, v.cell.norm): v for v in judge(on_a_ring)}
    small = explained(on_a_ring, verdicts["DCD with 8 bits converges like all-reduce", 8, "max"])
    assert "gap 4.50 ± 0.01. Exact gossip does not match all-reduce here either (gap 4.00 ± 0.01)" in small
    assert small.endswith("compression adds +0.50 ± 0.01 points to that: held against D-PSGD.")
    large = explained(on_a_ring, verdicts["ECD with 8 bits converges like all-reduce", 8, "max"])
    assert "compression adds +3.00 ± 0.01 points to that: not held against D-PSGD. Measured: " in large
    assert "α = 0.01 " in large
    text = page(on_a_ring, list(verdicts.values()), {})
    assert "**held against D-PSGD**: gap 4.50 ± 0.01; to D-PSGD +0.50 ± 0.01" in text


def test_where_the_levels_are_not_the_papers_text_and_explanation_say_so(on_a_ring: Findings) -> None:
    table_1 = [verdict for verdict in judge(on_a_ring) if verdict.statement.source == KOLOSKOVA]
    assert len(table_1) == 6
    for verdict in table_1:
        told = {8: "here 127 levels, there 255", 4: "here 7 levels, there 15"}[verdict.cell.bits]
        assert told in verdict.statement.text
        if verdict.word != "held":
            assert told in explained(on_a_ring, verdict)
    assert len([verdict for verdict in table_1 if verdict.word != "held"]) == 4


def test_what_is_kept_can_be_compared_again(as_published: Findings, tmp_path: Path) -> None:
    runs = as_published.groups[Cell(8, "choco", 4, "l2")].runs
    (runs[0].path / "env.json").write_text("{}")
    for run in runs:
        keep(run, tmp_path / run.path.name)
    again = [Run.read(tmp_path / run.path.name) for run in runs]
    assert [run.summary for run in again] == [run.summary for run in runs]
    assert [row["loss"] for row in again[0].rows] == [row["loss"] for row in runs[0].rows]
    assert "loss_min" not in again[0].rows[0]
    for run in again:
        keep(run, run.path)  # judged again in place
    assert (again[0].path / "env.json").exists()


def test_the_command_writes_the_page_and_counts_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fabricated(tmp_path / "runs", {method: RING[method] for method in (("allreduce", 32), ("dpsgd", 32))})
    monkeypatch.setattr(pictures, "draw", lambda findings, out: {"a.png": "What a shows."})
    monkeypatch.setattr(sys, "argv", ["findings", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    command.main()
    assert capsys.readouterr().out.endswith("README.md: 2 not held, 26 open\n")
    assert "![a.png](a.png)\n\nWhat a shows.\n" in (tmp_path / "out" / "README.md").read_text()
    assert len(find([tmp_path / "out" / "runs"])) == 12


# -- the pictures ----------------------------------------------------------------------------------


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Whatever matplotlib saves, by file name."""
    figure, saved = pytest.importorskip("matplotlib.figure").Figure, dict[str, Any]()
    save = figure.savefig

    def savefig(self: Any, path: Path, **options: Any) -> None:
        saved[path.name] = self
        save(self, path, **options)

    monkeypatch.setattr(figure, "savefig", savefig)
    return saved


def labels(axes: Any) -> tuple[str, str]:
    return axes.get_xlabel(), axes.get_ylabel()


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def named(axes: Any) -> list[Any]:
    """Lines that stand in the legend; not the markers that say where one diverged."""
    return [line for line in axes.lines if not line.get_label().startswith("_")]


def crosses(axes: Any) -> list[Any]:
    return [line for line in axes.lines if line.get_marker() == "x"]


def test_losses_are_drawn_as_in_the_papers_figures(
    as_published: Findings, tmp_path: Path, figures: dict[str, Any]
) -> None:
    captions = pictures.draw(as_published, tmp_path)
    assert list(captions) == list(figures) == ["fig2a.png", "fig4.png", "others.png", "errors.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in captions)
    assert "Fig. 2a" in captions["fig2a.png"] and "Fig. 4" in captions["fig4.png"]

    fig2a, fig4 = figures["fig2a.png"], figures["fig4.png"]
    assert legend(fig2a) == ["all-reduce, 32 bit", "D-PSGD, 32 bit", "DCD, 8 bit", "ECD, 8 bit"]
    assert [labels(axes) for axes in fig2a.axes] == [("epoch", "training loss"), ("epoch", "")]
    titles = ["8 nodes; max norm, block 512", "8 nodes; l2 norm, per tensor"]
    assert [axes.get_title() for axes in fig2a.axes] == titles
    assert [(len(named(axes)), len(crosses(axes))) for axes in fig2a.axes] == [(4, 0)] * 2

    assert len(legend(fig4)) == 5
    assert [labels(axes) for axes in fig4.axes] == [
        ("", "training loss"),
        ("", ""),
        ("epoch", "training loss"),
        ("epoch", ""),
    ]
    for axes in fig4.axes:
        ecd_4 = named(axes)[-1]
        assert ecd_4.get_label() == "ECD, 4 bit"
        assert [cross.get_color() for cross in crosses(axes)] == [ecd_4.get_color()] * 3
        assert [list(cross.get_xdata()) for cross in crosses(axes)] == [[1.5]] * 3


def test_what_diverges_before_the_first_measurement_has_its_cross_inside_the_picture(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    runs = fabricated(tmp_path / "runs", {("ecd", 4): None}, nodes=[16], diverged_at=3)
    pictures.draw(Findings.of(runs), tmp_path)
    fig4 = figures["fig4.png"]
    assert legend(fig4) == ["ECD, 4 bit"]  # though the first panel, of 8 nodes, has no run
    assert [len(crosses(axes)) for axes in fig4.axes] == [0, 0, 3, 3]
    low, high = fig4.axes[2].get_ylim()
    assert all(low < cross.get_ydata()[0] < high for cross in crosses(fig4.axes[2]))


def test_errors_are_drawn_with_what_is_lost_at_the_upper_edge(
    as_published: Findings, tmp_path: Path, figures: dict[str, Any]
) -> None:
    caption = pictures.draw(as_published, tmp_path)["errors.png"]
    assert "Open marks" in caption and "Dotted" in caption and "Dashed" in caption
    errors = figures["errors.png"]
    assert sorted(legend(errors)) == sorted(["naive", "DCD", "ECD", "CHOCO", "D-PSGD", "DCD's bound"])
    xlabel = "measured ‖v − C(v)‖/‖v‖ of the messages"
    assert [labels(axes) for axes in errors.axes] == [(xlabel, "points below all-reduce"), (xlabel, "")]
    for axes in errors.axes:
        assert {bars.get_label(): len(bars[0].get_xdata()) for bars in axes.containers} == {
            "naive": 4,
            "DCD": 4,
            "ECD": 2,  # of 8 bits
            "CHOCO": 4,
        }
        assert [(list(x), list(y)) for x, y in open_marks(axes)] == [([0.5], [1])] * 2


def open_marks(axes: Any) -> list[tuple[Any, Any]]:
    return [line.get_data() for line in axes.lines if line.get_markerfacecolor() == "none"]


def test_only_what_diverged_is_lost_and_every_method_is_in_the_legend(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    runs = fabricated(tmp_path / "runs", {("dcd", 8): 70.0, ("ecd", 4): None}, seeds=[1], nodes=[8])
    runs += fabricated(tmp_path / "runs", {("choco", 4): None}, seeds=[1, 2], nodes=[8])
    runs += fabricated(tmp_path / "runs", {("choco", 4): 60.0}, seeds=[3], nodes=[8])
    pictures.draw(Findings.of(runs), tmp_path)  # all-reduce, and so every gap, is missing
    left, right = figures["errors.png"].axes
    assert len(open_marks(left)) == 2 and not open_marks(right)  # ECD with either norm
    assert legend(figures["errors.png"]) == ["DCD's bound", "naive", "DCD", "ECD", "CHOCO"]
    assert min(axes.get_position().width for axes in (left, right)) > 0.4  # empty panels keep the layout, too
