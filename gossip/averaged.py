"""The mean of the nodes' models, as a state_dict. Collective."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gossip.agreement import digest
from gossip.flat import FlatModel
from gossip.transport.base import Transport

Mean = Callable[[Tensor], Tensor]
"""Of a float32 tensor, over all ranks."""


def averaged(
    model: nn.Module, flat: FlatModel, world: Transport, mean: Mean, buffers: bool
) -> dict[str, Any]:
    """What `model.state_dict()` would be if its parameters, and with `buffers` its buffers, were the means.

    What is frozen, and buffers, are averaged where they differ between the ranks; else they keep their bits.
    """
    x = mean(flat.vector)
    means = {name: flat.view(x, p) for p, name in flat.names.items()}
    others: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p not in flat.names}
    if buffers:
        others |= dict(model.named_buffers())
    for name, value in _different(others, world).items():
        means[name] = _mean(value, world, mean)
    state = functional_call(_State(model), {f"model.{name}": value for name, value in means.items()}, ())
    return {name: _copy(value) for name, value in state.items()}


class _State(nn.Module):
    """Gives the state_dict of `model` when it is called, through whatever hooks that has."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> dict[str, Any]:
        return self.model.state_dict()


def _different(tensors: Mapping[str, Tensor], world: Transport) -> dict[str, Tensor]:
    """Those of which a mean can be taken, and that are not the same on all ranks."""
    digests = {
        name: digest(value)
        for name, value in tensors.items()
        if (value.is_floating_point() or value.is_complex()) and value.numel()
    }
    if not digests:  # on no rank: join has compared their names
        return {}
    everyone = world.allgather(digests)
    return {name: tensors[name] for name in digests if any(each[name] != digests[name] for each in everyone)}


def _mean(value: Tensor, world: Transport, mean: Mean) -> Tensor:
    """In the precision of `value`; the transport's means are float32."""
    if value.is_complex() or value.dtype == torch.float64:
        everyone = world.allgather(value.detach().cpu().clone())
        return torch.stack(everyone).mean(0).to(value.device)
    return mean(value.detach().float()).to(value.dtype)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
