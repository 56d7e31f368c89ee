"""What a gradient method takes over from the user's SGD: momentum, Nesterov and weight decay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD, Optimizer

from gossip.algorithms.base import Adoption
from gossip.errors import UsageError

if TYPE_CHECKING:
    from gossip.flat import Segment


@dataclass(frozen=True)
class Momentum:
    """A parameter group's m, whether it is Nesterov's, and λ."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __str__(self) -> str:
        return (
            f"momentum={self.momentum:g}, nesterov={str(self.nesterov).lower()}, "
            f"weight_decay={self.weight_decay:g}"
        )


class MomentumAdoption(Adoption):
    """Sets the three to 0 in the optimizer's groups and keeps what they were.

    Raises UsageError where the optimizer is not SGD, has dampening or maximizes, or where a group with
    momentum or decay also holds parameters of another model, which would lose them.
    """

    def __init__(self, method: str, optimizer: Optimizer, parameters: Mapping[nn.Parameter, str]) -> None:
        self._method, self._optimizer = method, optimizer
        if not isinstance(optimizer, SGD):
            raise UsageError(
                f"{method} takes momentum and weight decay over from torch.optim.SGD, but the optimizer is "
                f"{type(optimizer).__name__}. Use SGD(model.parameters(), lr=…, momentum=0.9), or "
                f"--algorithm {method}:momentum_correction=false, which leaves them to any optimizer."
            )
        self._groups = [
            Momentum(float(group["momentum"]), bool(group["nesterov"]), float(group["weight_decay"]))
            for group in optimizer.param_groups
        ]
        self._of: dict[nn.Parameter, Momentum] = {}
        for group, taken in zip(optimizer.param_groups, self._groups, strict=True):
            for name in ("dampening", "maximize"):
                if group[name]:
                    raise UsageError(f"{method} cannot take over {name}={group[name]}. Make SGD without it.")
            own = [p for p in group["params"] if p in parameters]
            if taken != Momentum() and any(p.requires_grad and p not in parameters for p in group["params"]):
                raise UsageError(
                    f"{method} takes over {taken} from a group of the optimizer that also holds parameters "
                    "of another model. Give those an optimizer, or a group, of their own."
                )
            self._of.update(dict.fromkeys(own, taken))
        for group in optimizer.param_groups:
            group.update(vars(Momentum()))
        every = "; ".join(dict.fromkeys(map(str, self._groups)))
        self.note = f"{method}: {every} taken over from SGD, which is left with the learning rate alone"
        if any(
            optimizer.state[p].get("momentum_buffer") is not None for p in self._of if p in optimizer.state
        ):
            self.note += "; the velocity that it had gathered is dropped"
        if others := [name for p, name in parameters.items() if p not in self._of]:
            self.note += f"; {len(others)} parameters that it does not hold ({others[0]}, …) keep theirs"

    def of(self, p: nn.Parameter) -> Momentum:
        return self._of.get(p, Momentum())

    def begin(self) -> None:
        for p in self._of:  # or it would come back, long out of date, when the momentum is given back
            if p in self._optimizer.state:
                self._optimizer.state[p].pop("momentum_buffer", None)

    def check(self) -> None:
        for group in self._optimizer.param_groups:
            for name in ("momentum", "nesterov", "weight_decay"):
                if group[name]:
                    raise UsageError(
                        f"the optimizer's {name} was set to {group[name]} after join, but {self._method} has "
                        f"taken it over. An optimizer's state that was saved without {self._method} is "
                        "loaded before join, one that was saved with it after; with CyclicLR or OneCycleLR, "
                        "pass cycle_momentum=False."
                    )

    def release(self) -> None:
        for group, values in zip(self._optimizer.param_groups, self._groups, strict=False):  # some may be new
            group.update(vars(values))


def alike(segments: Sequence[Segment], adopted: Sequence[Any]) -> Iterator[tuple[slice, Momentum]]:
    """The bucket in slices of equal hyper-parameters, as long as can be."""
    start = stop = 0
    for i, segment in enumerate(segments):
        stop = segment.offset + segment.size
        if i + 1 == len(segments) or adopted[i + 1] != adopted[i]:
            yield slice(start, stop), adopted[i]
            start = stop
