"""The word-level language model of Zaremba et al. 2014 (arXiv 1409.2329): two LSTM layers and a softmax."""

from __future__ import annotations

from torch import Tensor, nn

LAYERS = 2
INIT = 0.1
"""All parameters start from the uniform distribution on [-INIT, INIT], as the paper's small model."""

Memory = tuple[Tensor, ...]
"""h and c, [layers, b, hidden] each."""


class LSTM(nn.Module):
    """Words int64 [T, b] and what came before them -> logits [T, b, vocab] of the next words, and memory.

    Dropout acts between the layers, on the embeddings and before the softmax, never along time, as in the
    paper. With `tied` the softmax's weights are those of the embedding (Press & Wolf 2017, arXiv 1608.05859).
    """

    def __init__(self, vocab: int, hidden: int, embed: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embed, hidden, LAYERS, dropout=dropout)
        self.out = nn.Linear(hidden, vocab)
        if tied:
            self.out.weight = self.embedding.weight
        for p in self.parameters():
            nn.init.uniform_(p, -INIT, INIT)

    def forward(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        h, memory = self.lstm(self.dropout(self.embedding(x)), memory)
        return self.out(self.dropout(h)), memory


def lstm(
    vocab: int, hidden: int = 200, embed: int | None = None, dropout: float = 0.0, tied: bool = False
) -> nn.Module:
    """An `LSTM` with `hidden` units per layer, and as many dimensions of the embedding or `embed`."""
    embed = hidden if embed is None else embed
    if min(hidden, embed) < 1:
        raise ValueError(f"hidden={hidden}, embed={embed}: give at least 1, such as lstm:hidden=200")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout:g}: give a share of the units from 0 up to, but not including, 1")
    if tied and embed != hidden:
        raise ValueError(f"tied=true needs embed = hidden, not {embed} and {hidden}: leave embed out")
    return LSTM(vocab, hidden, embed, dropout, tied)
