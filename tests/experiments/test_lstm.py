"""The language model: its shapes, its memory, and that it trains on a flat vector as it does without one."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import gossip
from experiments.models import build
from gossip.errors import UsageError
from tests.training import flat

VOCAB = 11


def model(options: str = "hidden=6") -> nn.Module:
    torch.manual_seed(0)
    return build(f"lstm:{options}", VOCAB)


def stream(length: int, columns: int = 3) -> Tensor:
    return torch.randint(0, VOCAB, (length, columns), generator=torch.Generator().manual_seed(1))


def test_the_ptb_model_has_the_published_size_and_message() -> None:
    """DGC's paper (arXiv 1712.01887): 194.68 MB, 0.42 MB at 99.9 %, 462 times less."""
    with torch.device("meta"):
        shapes = [p.shape for p in build("lstm:hidden=1500,tied=true", 10_000).parameters()]
    weights = sum(shape.numel() for shape in shapes if len(shape) > 1)
    dense = sum(shape.numel() for shape in shapes if len(shape) == 1)
    size, message = 4 * (weights + dense), 0.001 * weights * 6 + 4 * dense
    assert round(size / 2**20, 2) == 194.68
    assert round(message / 2**20, 4) == 0.4215
    assert round(size / message) == 462


@pytest.mark.parametrize(
    ("options", "embed", "tied"), [("hidden=6", 6, False), ("6,embed=4", 4, False), ("6,tied=true", 6, True)]
)
def test_number_of_parameters(options: str, embed: int, tied: bool) -> None:
    layers = 4 * 6 * (embed + 6 + 2) + 4 * 6 * (6 + 6 + 2)
    expected = VOCAB * embed + layers + VOCAB + (0 if tied else 6 * VOCAB)
    assert sum(p.numel() for p in model(options).parameters()) == expected


def test_weights_start_uniform_between_minus_and_plus_a_tenth() -> None:
    x = flat(model("hidden=64"))
    assert -0.1 <= x.min() < -0.0999 and 0.0999 < x.max() <= 0.1
    std = 0.1 / 3**0.5  # the sample's is within 5 of its own standard errors, sqrt((9/5 - 1) / 4n) std
    assert abs(float(x.std()) / std - 1) < 5 * (0.2 / x.numel()) ** 0.5


def test_reading_in_windows_is_reading_at_once() -> None:
    lstm, x = model("hidden=6,tied=true"), stream(20)
    whole, last = lstm(x)
    memory, parts = None, []
    for window in x.split(7):
        logits, memory = lstm(window, memory)
        parts.append(logits)
    assert whole.shape == (20, 3, VOCAB)
    torch.testing.assert_close(torch.cat(parts), whole)
    assert memory is not None
    torch.testing.assert_close(memory, last)


def test_every_parameter_learns() -> None:
    lstm = model("hidden=6,embed=4")
    logits, _ = lstm(stream(5))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in lstm.parameters())


@pytest.mark.parametrize("algorithm", ["allreduce", "dpsgd", "dgc:ratio=1,masking=false,warmup_steps=0"])
@pytest.mark.parametrize("options", ["hidden=6,dropout=0.5", "hidden=6,tied=true"])
def test_on_one_node_it_trains_as_without_gossip(algorithm: str, options: str) -> None:
    """Bit for bit: `nn.LSTM` keeps a list of its weights of its own, which has to follow them."""

    def train(joined: bool) -> nn.Module:
        lstm, memory = model(options), None
        optimizer = torch.optim.SGD(lstm.parameters(), lr=0.5, momentum=0.9)
        node = gossip.join(lstm, optimizer, algorithm=algorithm) if joined else None
        torch.manual_seed(2)  # of dropout
        for window in stream(40).split(8):
            logits, memory = lstm(window[:-1], memory)
            memory = tuple(part.detach() for part in memory)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits.flatten(0, 1), window[1:].flatten()).backward()
            optimizer.step()
        if node is not None:
            node.finish()
        return lstm

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, joined = train(joined=False), train(joined=True)
    assert torch.equal(flat(plain), flat(joined)) and not torch.equal(flat(plain), flat(model(options)))
    x = stream(9)
    with torch.no_grad():
        expected = plain.eval()(x)[0]
        assert torch.equal(joined.eval()(x)[0], expected)
        assert torch.equal(copy.deepcopy(joined)(x)[0], expected)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("hidden=0", "at least 1"),
        ("dropout=1", "dropout=1: give a share"),
        ("hidden=6,embed=4,tied=true", "tied=true needs embed = hidden"),
        ("hiden=6", "did you mean 'hidden'"),
    ],
)
def test_what_does_not_fit_is_refused(options: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        model(options)
