"""The user's own optimizer, applied to each parameter when its gradient has come: P3's wait per module.

`optimizer.step()` updates what is final and leaves out the rest: torch's optimizers skip parameters whose
``grad`` is None. Before a module runs, the engine waits for the gradients of its parameters, and the
optimizer's own step runs for just these, with the hyper-parameters that its groups had at the `step()` they
belong to. An optimizer whose step treats every parameter by itself computes the same bits either way.

A gradient is used up by its step. Afterwards ``p.grad`` is None, whether it came in time or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossip.errors import UsageError
from gossip.flat import FlatModel
from gossip.forward_order import ForwardOrder

Group = dict[str, Any]
"""A parameter group of an optimizer."""


class UnfinishedGradient(Tensor):
    """What ``p.grad`` is between backward and step, while the mean is on its way: any use is an error."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> NoReturn:
        raise UsageError(
            "between backward() and step() the gradients are still on their way: each is applied when its "
            "module runs next. What reads or changes them there (clip_grad_norm_, a second optimizer) "
            "needs --no-overlap (join(overlap=False)), or a method such as allreduce."
        )


class LazyOptimizer:
    """Runs the user's optimizer for some parameters at a time.

    Attributes:
        order: which module needs which parameters.
        parked: parameters without the update of the last step, with the hyper-parameters it shall have.
        applying: whether a part of a step is being made.
    """

    def __init__(self, optimizer: Optimizer, flat: FlatModel, order: ForwardOrder) -> None:
        self.order = order
        self.parked: dict[nn.Parameter, Group] = {}
        self.applying = False
        self._optimizer, self._flat = optimizer, flat
        self._versions: dict[nn.Parameter, int] = {}  # of those that are parked, when they were
        self._hidden: dict[nn.Parameter, Tensor] = {}
        self._before: list[Group] = []  # the groups, while a first step runs
        self._checked = False

    def hide(self) -> None:
        """Backward is over: from here to `park`, ``p.grad`` is an `UnfinishedGradient`."""
        if not self._hidden:
            self._hidden = {
                p: Tensor._make_subclass(UnfinishedGradient, self._flat.gradients[p])
                for p in self._flat.names
            }
        for p, hidden in self._hidden.items():
            p.grad = hidden

    def park(self, is_late: Callable[[nn.Parameter], bool]) -> None:
        """The optimizer is about to step: give it the final gradients, and keep the late ones from it.

        A gradient that the user has replaced since backward, with None perhaps, stays what it is.
        """
        group_of = {p: group for group in self._optimizer.param_groups for p in group["params"]}
        now = {id(group): _hyper(group) for group in self._optimizer.param_groups}
        for p, hidden in self._hidden.items():
            if p.grad is hidden:
                late = is_late(p)
                p.grad = None if late else self._flat.gradients[p]
                if late and p in group_of:
                    self.parked[p], self._versions[p] = now[id(group_of[p])], p._version
        if not self._checked:
            self._before = list(now.values())

    def check(self) -> None:
        """The optimizer has stepped.

        Raises:
            UsageError: it has changed its groups, and would do so with every part of a step.
        """
        if not self._before:
            return
        for before, group in zip(self._before, self._optimizer.param_groups, strict=True):
            for name, value in before.items():
                if not _same(value, group[name]):
                    raise UsageError(
                        f"{type(self._optimizer).__name__} keeps {name!r} per group and changes it in every "
                        "step, so it cannot be applied module by module. Use --no-overlap "
                        "(join(overlap=False))."
                    )
        self._before, self._checked = [], True

    def apply(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give parameters (at least one, all parked) their update; their gradients must be final.

        Raises:
            UsageError: one has been written to since `park`: the order of the two would be the wrong one.
        """
        due, groups = list(parameters), dict[int, Group]()
        for p in due:
            if p._version != self._versions[p]:
                raise UsageError(
                    f"parameter {self._flat.names[p]!r} was written to after step(), before its update had "
                    "come. To clamp weights and the like, use --no-overlap (join(overlap=False)), or a "
                    "method such as allreduce."
                )
            hyper = self.parked.pop(p)
            groups.setdefault(id(hyper), {**hyper, "params": []})["params"].append(p)
            p.grad = self._flat.gradients[p]
        everything, self._optimizer.param_groups = self._optimizer.param_groups, list(groups.values())
        device, self.applying = due[0].device.type, True
        try:  # a module's hook may run under autocast or in inference mode, which the update must not feel
            with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
                _own_step(self._optimizer)(self._optimizer)
        finally:
            self._optimizer.param_groups, self.applying = everything, False
            for p in due:
                p.grad = None

    def forget(self) -> None:
        """The optimizer does not step: drop the updates that are parked."""
        self.parked.clear()
        self._before = []


def _own_step(optimizer: Optimizer) -> Callable[[Optimizer], object]:
    """The step of the optimizer's class without the hooks around it: those are for whole steps."""
    step: Any = type(optimizer).step
    own: Callable[[Optimizer], object] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return own


def _hyper(group: Group) -> Group:
    """A group's hyper-parameters as they are now: a scheduler may write to those that are tensors."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)
