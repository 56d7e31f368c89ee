"""Text becomes word ids: what a word is, which words are known, and where training text ends."""

from __future__ import annotations

from pathlib import Path
from unicodedata import normalize

import pytest
import torch

from experiments import data
from experiments.data.text import Corpus
from gossip.errors import UsageError


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def words(corpus: Corpus, part: str = "train") -> list[str]:
    return [corpus.vocabulary[i] for i in getattr(corpus, part).tolist()]


def test_a_line_is_its_words_and_an_end(tmp_path: Path) -> None:
    """As PTB's files are read everywhere: split at white space, nothing else touched."""
    lines = [" the <unk> co. 's N u.s. $ \n", "\n", " no end"]
    corpus = data.load_text("text", write(tmp_path / "a", "".join(lines) * 10))
    stream = " ".join(word for part in ("train", "valid", "test") for word in words(corpus, part))
    expected = "".join(lines) * 10 + "\n"
    assert stream.split() == expected.replace("\n", " <eos> ").split()


def test_words_and_punctuation_apart(tmp_path: Path) -> None:
    text = "O, we'll GO -- now!\n" * 20
    corpus = data.load_text("text:tokens=words", write(tmp_path / "a", text))
    assert words(corpus)[:10] == ["o", ",", "we'll", "go", "-", "-", "now", "!", "<eos>", "o"]


def test_words_with_accents_stay_whole_however_they_are_written(tmp_path: Path) -> None:
    corpora = [
        data.load_text("text:tokens=words", write(tmp_path / form, normalize(form, "Café, naïve!\n" * 20)))
        for form in ("NFC", "NFD")
    ]
    assert [words(corpus)[:4] for corpus in corpora] == [["café", ",", "naïve", "!"]] * 2


def test_one_file_is_cut_into_three_contiguous_parts(tmp_path: Path) -> None:
    text = [f"w{i % 7}" for i in range(997)]
    corpus = data.load_text("text", write(tmp_path / "a", " ".join(text)))
    parts = [words(corpus, part) for part in ("train", "valid", "test")]
    assert [word for part in parts for word in part] == [*text, "<eos>"]
    assert [len(part) for part in parts] == [898, 50, 50]


@pytest.mark.parametrize("name", ["ptb.train.txt", "train"])
def test_a_triple_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, "a b\na c\n")
    write(tmp_path / name.replace("train", "valid"), "a d\n")
    write(tmp_path / name.replace("train", "test"), "c c\n")
    corpus = data.load_text("text", file)
    assert words(corpus) == ["a", "b", "<eos>", "a", "c", "<eos>"]
    assert words(corpus, "valid") == ["a", "<unk>", "<eos>"]  # d is not in the training text
    assert words(corpus, "test") == ["c", "c", "<eos>"]


def test_the_vocabulary_is_by_frequency_and_of_the_training_part_alone(tmp_path: Path) -> None:
    file = write(tmp_path / "train", "z b b c\nc a z <unk> b\n")
    for part in ("valid", "test"):
        write(tmp_path / part, "new " * 9)
    ranked = ("<unk>", "<eos>", "b", "z", "c", "a")  # z and c occur twice, z first
    for size in range(3, 9):
        corpus = data.load_text(f"text:vocab={size}", file)
        assert corpus.vocabulary == ranked[:size]
        assert words(corpus) == [w if w in ranked[:size] else "<unk>" for w in "z b b c E c a z <unk> b E"
                                 .replace("E", "<eos>").split()]  # fmt: skip
        assert set(words(corpus, "test")) == {"<unk>", "<eos>"}


def test_the_same_text_has_the_same_digest_and_another_has_not(tmp_path: Path) -> None:
    text = "a b c d e\n" * 20
    same = [data.load_text("text", write(tmp_path / name, text)).digest for name in ("a", "b")]
    other = data.load_text("text", write(tmp_path / "c", text + "a b c d d\n")).digest
    fewer = data.load_text("text:vocab=4", str(tmp_path / "a")).digest
    assert same[0] == same[1] and len({same[0], other, fewer}) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "holds no words"),
        (b"\n \n\n", "holds no words"),
        (b"one two three", "too few: each part needs at least 2"),
        (b"caf\xe9 " * 50, "is not text in UTF-8 .*iconv"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: bytes | None, told: str) -> None:
    file = tmp_path / "mine.txt"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(UsageError, match=f"mine.txt.*{told}"):
        data.load_text("text", str(file))


def test_half_a_triple_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "ptb.train.txt", "a b c\n" * 50)
    assert len(data.load_text("text", file).train) > 100  # alone it is cut
    write(tmp_path / "ptb.test.txt", "a b c\n")
    with pytest.raises(UsageError, match=r"ptb\.test\.txt lies beside it and ptb\.valid\.txt does not"):
        data.load_text("text", file)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("text:vocab=2", "vocab=2: "),
        ("text:tokens=letters", "spaces or words"),
        ("txt", "did you mean 'text'"),
    ],
)
def test_a_wrong_spec_says_what_fits(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        data.name_of(spec)


def test_ids_are_int64(tmp_path: Path) -> None:
    corpus = data.load_text("text", write(tmp_path / "a", "a b c\n" * 20))
    assert all(part.dtype == torch.int64 for part in (corpus.train, corpus.valid, corpus.test))
