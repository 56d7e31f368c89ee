"""The training script on text: what it measures, what it leaves behind, and that it resumes bitwise."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import compare, config, data, models, recipe
from experiments.curves import group
from experiments.data.text import Corpus
from experiments.data.windows import columns
from experiments.runs import find
from experiments.workloads.text import TEST_COLUMNS
from gossip.errors import UsageError
from tests.experiments import fabricate
from tests.experiments.checkpoints import assert_equal, states

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A text of 18 words in which each is followed by one of two."""
    generator = torch.Generator().manual_seed(5)
    word, words = 0, []
    for coin in torch.randint(0, 2, (420,), generator=generator).tolist():
        word = (5 * word + 1 + coin) % 17
        words.append(f"w{word}" if word else "w0\n")
    path = tmp_path / "text.txt"
    path.write_text(" ".join(words))
    return str(path)


def flags(file: str, *more: str) -> tuple[str, ...]:
    start = ("--dataset", "text", "--data-file", file, "--model", "lstm:hidden=8", "--bptt", "5")
    return (*start, "--batch-size", "2", "--lr", "1", "--nodes", "3", *more)


def perplexity(run: dict[str, Any], tokens: torch.Tensor, corpus: Corpus, spec: str) -> float:
    """That of the averaged model on a stream, column by column, in float64."""
    model = models.build(spec, len(corpus.vocabulary))
    model.load_state_dict(torch.load(run["folder"] / "averaged.pt", weights_only=True))
    model.double().eval()
    pairs, total = len(tokens) - 1, 0.0
    starts = [k * pairs // TEST_COLUMNS for k in range(TEST_COLUMNS + 1)]
    for start, end in itertools.pairwise(starts):
        logits, _ = model(tokens[start:end, None])
        chosen = logits[:, 0].log_softmax(1)[torch.arange(end - start), tokens[start + 1 : end + 1]]
        total -= float(chosen.sum().detach())
    return math.exp(total / pairs)


@pytest.mark.parametrize("nodes", ["1", "3"])
@pytest.mark.parametrize("spec", ["lstm:hidden=8,dropout=0.3", "lstm:hidden=8,tied=true"])
def test_a_run_states_the_perplexity_of_the_model_it_leaves(
    job: Any, file: str, nodes: str, spec: str
) -> None:
    run = job(*flags(file, "--model", spec, "--nodes", nodes, "--epochs", "1"))
    corpus = data.load_text("text", file)
    summary = run["summary"]
    for name, tokens in (("test", corpus.test), ("valid", corpus.valid)):
        expected = perplexity(run, tokens, corpus, spec)
        assert summary[f"{name}_perplexity"] == pytest.approx(expected, rel=1e-5), name
    assert summary["test_loss"] == pytest.approx(math.log(summary["test_perplexity"]))
    low, mean, high = (summary[f"test_perplexity_local_{which}"] for which in ("min", "mean", "max"))
    assert low <= mean <= high and "test_accuracy" not in summary
    assert tuple((run["folder"] / "vocab.txt").read_text().split()) == corpus.vocabulary


def test_a_test_reads_every_pair_once_on_more_ranks_than_columns(job: Any, file: str) -> None:
    run = job(*flags(file, "--nodes", "18", "--batch-size", "1", "--algorithm", "local", "--steps", "1"))
    corpus = data.load_text("text", file)
    expected = perplexity(run, corpus.test, corpus, "lstm:hidden=8")
    assert run["summary"]["test_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert len(columns(corpus.test, TEST_COLUMNS)[0]) == math.ceil((len(corpus.test) - 1) / TEST_COLUMNS)


def test_training_learns(job: Any, tmp_path: Path) -> None:
    """Words in a circle: among 8 at first, and no choice at all when the circle is known."""
    for part in ("train", "valid", "test"):
        (tmp_path / f"circle.{part}.txt").write_text("one two three four five\n" * 60)
    file = str(tmp_path / "circle.train.txt")
    learns = ("--model", "lstm:hidden=16", "--optimizer", "adamw", "--lr", "0.03", "--algorithm", "allreduce")
    summary = job(*flags(file, *learns, "--nodes", "2", "--epochs", "5"))["summary"]
    assert summary["test_perplexity"] < 1.5


@pytest.mark.parametrize("algorithm", ["dgc:ratio=0.1,warmup_steps=3", "dpsgd"])
def test_resumed_is_uninterrupted(job: Any, file: str, algorithm: str) -> None:
    """In the middle of an epoch: position, memory, and the random numbers of dropout."""
    start = flags(file, "--algorithm", algorithm, "--compressor", "identity", "--clip-norm", "0.5")
    start += ("--model", "lstm:hidden=8,dropout=0.3", "--epochs", "2", "--log-every", "3")
    whole = job(*start, out="whole")
    length = whole["metrics"][-1]["step"] // 2
    job(*start, "--steps", str(length // 2), out="parts")
    parts = job("--resume", "--steps", "1000", out="parts")
    assert_equal(states(whole["folder"]), states(parts["folder"]))
    assert whole["summary"]["test_perplexity"] == parts["summary"]["test_perplexity"]


def test_another_text_does_not_continue_a_run(job: Any, file: str) -> None:
    job(*flags(file, "--steps", "2"))
    moved = Path(file).with_name("moved.txt")
    moved.write_text(Path(file).read_text())
    job("--resume", "--steps", "3", "--data-file", str(moved))
    moved.write_text(moved.read_text().replace("w3", "w4", 1))
    with pytest.raises(UsageError, match="the data of --data-file are not those"):
        job("--resume", "--steps", "4", "--data-file", str(moved))


def test_bfloat16(job: Any, file: str) -> None:
    start = flags(file, "--algorithm", "allreduce", "--epochs", "1")
    exact, rounded = (job(*start, "--amp", amp, out=amp)["summary"] for amp in ("none", "bf16"))
    assert rounded["test_perplexity"] == pytest.approx(exact["test_perplexity"], rel=0.05)
    assert rounded["test_perplexity"] != exact["test_perplexity"]


def test_perplexity_is_what_people_see(job: Any, file: str, capsys: Any, tmp_path: Path) -> None:
    run = job(*flags(file, "--steps", "2"))
    value = f"{run['summary']['test_perplexity']:.2f}"
    out = capsys.readouterr().out
    assert f"test perplexity {value} (averaged model)" in out and f"test perplexity      {value} av" in out
    assert "tokens to train, validate and test (the first 90" in out and "accuracy" not in out
    head, (row,) = compare.table(group(find([run["folder"]])))
    assert "test perplexity" in head[2] and row[2] == value
    fabricate.run(tmp_path / "images", accuracy=9.0)
    with pytest.raises(UsageError, match="judged by different numbers"):
        group(find([run["folder"], tmp_path / "images"]))


# -- clipping --------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["allreduce", "dpsgd"])
def test_gradients_are_clipped_after_backward(job: Any, file: str, algorithm: str) -> None:
    start = flags(file, "--algorithm", algorithm, "--steps", "3", "--log-every", "1")
    free = job(*start, out="free")["metrics"]
    clipped = job(*start, "--clip-norm", "0.01", out="clipped")["metrics"]
    assert all(row["grad_norm"] > 0.02 for row in free)
    assert all(row["grad_norm"] == pytest.approx(0.01, rel=1e-3) for row in clipped)


def test_dgc_clips_by_itself_and_not_again(job: Any, file: str) -> None:
    start = flags(file, "--epochs", "1", "--algorithm")
    given = job(*start, "dgc:ratio=0.1,warmup_steps=2", "--clip-norm", "0.1", out="given")
    own = job(*start, "dgc:ratio=0.1,warmup_steps=2,clip=0.1", out="own")
    assert given["summary"]["algorithm"] == own["summary"]["algorithm"]
    assert_equal(states(given["folder"]), states(own["folder"]))


def test_the_loop_clips_unless_the_method_does() -> None:
    def clipping(*options: str) -> tuple[str, float | None]:
        method, norm = recipe.clipping(config.parse(options))
        return str(method), norm

    assert clipping("--algorithm", "allreduce", "--clip-norm", "2") == ("allreduce", 2)
    assert clipping("--algorithm", "dgc", "--clip-norm", "2") == ("dgc:clip=2.0", None)
    assert clipping("--algorithm", "dgc:clip=3") == ("dgc:clip=3.0", None)
    with pytest.raises(
        UsageError, match=r"--clip-norm 2 and the clip in --algorithm dgc:clip=3 .* leave one"
    ):
        clipping("--algorithm", "dgc:clip=3", "--clip-norm", "2")


@pytest.mark.parametrize("options", [["p3"], ["p3:order=fifo"], ["qsgd", "--order", "priority"]])
def test_what_is_applied_layer_by_layer_cannot_be_clipped(options: list[str]) -> None:
    """And this is said before there is any data."""
    args = ["--nodes", "4", "--clip-norm", "2", "--algorithm", *options]
    with pytest.raises(UsageError, match=r"--clip-norm 2: with (p3|qsgd) and overlap"):
        recipe.check(config.parse(args))
    recipe.check(config.parse([*args, "--no-overlap"]))


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--dataset", "text"), "--dataset text needs --data-file FILE"),
        (
            ("--dataset", "cifar10", "--data-file", "a"),
            "--data-file is for text, and --dataset cifar10 is im",
        ),
        (("--dataset", "synthetic", "--bptt", "9"), "--bptt is for text"),
        (("--dataset", "text", "--data-file", "a", "--bn", "local"), "--bn is for images"),
        (("--dataset", "text", "--data-file", "a", "--partition", "iid"), "--partition is for images"),
        (("--dataset", "text", "--data-file", "a", "--model", "resnet20"), "resnet20 .* take --model lstm"),
        (("--dataset", "synthetic", "--model", "lstm"), "lstm cannot .* images .* take --model resnet8 or"),
        (("--dataset", "text", "--data-file", "/no/such"), "/no/such cannot be read: No such file"),
        (("--dataset", "tekst"), "did you mean 'text'"),
    ],
)
def test_what_does_not_fit_is_refused(job: Any, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    model = () if "--model" in options else ("--model", "lstm" if "text" in options else "mlp")
    with pytest.raises(UsageError, match=told):
        job("--nodes", "3", *model, *options)
    assert not (tmp_path / "run").exists()


def test_too_short_a_text_is_refused(job: Any, file: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too few for 3 nodes x --batch-size 999 columns"):
        job(*flags(file, "--batch-size", "999"))
    assert not (tmp_path / "run").exists()


def test_the_model_follows_the_data(file: str) -> None:
    text = config.parse(["--dataset", "text", "--data-file", file])
    assert (text.model, text.bptt, text.data_dir, text.bn) == ("lstm", 35, None, None)
    images = config.parse([])
    assert (images.model, images.bptt, images.data_dir, images.bn) == ("resnet20", None, "data", "recompute")


def test_documented_commands_are_accepted() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "language-model.md").read_text(), re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if "experiments.train" in line]
    assert len(commands) >= 3
    for words in commands:
        config.parse(words[words.index("experiments.train") + 1 :])
