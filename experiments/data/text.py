"""Word-level text: one file, cut into three, or a triple of files such as the Penn Treebank's."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from experiments.data.dataset import digest
from gossip.errors import UsageError

UNKNOWN, END = "<unk>", "<eos>"
"""A word that is not in the vocabulary, and the end of a line: ids 0 and 1."""

PERCENT = (90, 95)
"""Where a single file is cut: training up to the first, validation up to the second, then test."""

_WORDS = re.compile(r"\w+(?:'\w+)*|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as word ids in reading order. Shared between the virtual nodes of a process: read only.

    Attributes:
        train, valid, test: int64 [N], N at least 2.
        vocabulary: the word of every id.
        origin: which files, and how they were cut.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]
    origin: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 of vocabulary and text: the same wherever the same text was read in the same way."""
        return digest((self.train, self.valid, self.test), "\n".join(self.vocabulary))

    def __str__(self) -> str:
        parts = (self.train, self.valid, self.test)
        sizes = " + ".join(f"{len(part):,}" for part in parts)
        unknown = ", ".join(f"{100 * float((part == 0).double().mean()):.1f}" for part in parts)
        return (
            f"{sizes} tokens to train, validate and test ({self.origin}), "
            f"vocabulary of {len(self.vocabulary):,}, {UNKNOWN} {unknown} %"
        )


@dataclass(frozen=True)
class Text:
    """A text file of your own (``--data-file``), as a stream of words in which every line ends with <eos>."""

    tokens: Literal["spaces", "words"] = field(
        default="spaces",
        metadata={"help": "spaces: what stands between them; words: lower case, punctuation on its own"},
    )
    vocab: int = field(
        default=10_000, metadata={"help": "largest vocabulary, with <eos>; rarer words become <unk>"}
    )

    def __post_init__(self) -> None:
        if self.vocab < 3:
            raise ValueError(f"vocab={self.vocab}: <unk>, <eos> and at least one word make 3")

    def prepare(self, file: str) -> None:
        """Nothing to do."""

    def load(self, file: str) -> Corpus:
        """Read `file`, and the other two of its triple if there are any.

        The vocabulary is that of the training part: <unk>, <eos>, then its words by frequency, those that are
        equally frequent in the order in which they first occur.

        Raises:
            UsageError: a file that cannot be read, is not UTF-8, or is too short.
        """
        path = Path(file).expanduser()
        triple = _triple(path)
        if triple is not None:
            parts = [self._read(each) for each in triple]
            origin = ", ".join(each.name for each in triple)
        else:
            stream = self._read(path)
            first, second = (len(stream) * percent // 100 for percent in PERCENT)
            parts = [stream[:first], stream[first:second], stream[second:]]
            shares = PERCENT[0], PERCENT[1] - PERCENT[0], 100 - PERCENT[1]
            origin = "the first {}, next {} and last {} % of {}".format(*shares, path.name)
        if min(map(len, parts)) < 2:
            sizes = " + ".join(str(len(part)) for part in parts)
            raise UsageError(
                f"--data-file {file}: {sizes} tokens to train, validate and test with are too few: "
                "each part needs at least 2. Name a longer text."
            )
        counted = (word for word, _ in Counter(parts[0]).most_common() if word not in (UNKNOWN, END))
        vocabulary = (UNKNOWN, END, *(word for _, word in zip(range(self.vocab - 2), counted, strict=False)))
        ids = {word: i for i, word in enumerate(vocabulary)}
        train, valid, test = (_encode(part, ids) for part in parts)
        return Corpus(train, valid, test, vocabulary, origin)

    def _read(self, path: Path) -> list[str]:
        """The words of a file."""
        try:
            with open(path, encoding="utf-8-sig") as lines:
                words = [word for line in lines for word in (*self._split(line), END)]
        except UnicodeDecodeError as error:
            raise UsageError(
                f"--data-file: {path} is not text in UTF-8 ({error.reason} at byte {error.start}). Name a "
                "plain text file; another encoding becomes UTF-8 with: iconv -f LATIN1 -t UTF-8 OLD > NEW"
            ) from None
        except OSError as error:
            raise UsageError(f"--data-file: {path} cannot be read: {error.strerror}") from None
        if set(words) <= {END}:
            raise UsageError(f"--data-file: {path} holds no words. Name a text file that does.")
        return words

    def _split(self, line: str) -> list[str]:
        if self.tokens == "spaces":
            return line.split()
        return _WORDS.findall(unicodedata.normalize("NFC", line).lower())  # an accent apart is no word


def _triple(path: Path) -> tuple[Path, Path, Path] | None:
    """`path` with the validation and test files that belong to it: ptb.valid.txt, ptb.test.txt."""
    if "train" not in path.name:
        return None
    valid, test = (path.with_name(path.name.replace("train", part)) for part in ("valid", "test"))
    if valid.exists() != test.exists():
        there, absent = (valid, test) if valid.exists() else (test, valid)
        raise UsageError(
            f"--data-file {path}: {there.name} lies beside it and {absent.name} does not. "
            "Put both there, or none to have the one file cut into three parts."
        )
    return (path, valid, test) if valid.exists() else None


def _encode(words: list[str], ids: dict[str, int]) -> Tensor:
    """int64 [N]."""
    return torch.from_numpy(np.fromiter((ids.get(word, 0) for word in words), np.int64, len(words)))
