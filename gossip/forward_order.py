"""Where in the forward pass each parameter is first needed, and by which module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from torch import nn


class ForwardOrder:
    """The order in which a model's modules run, and the parameters that each needs.

    It is learnt by watching: `saw` is called from the modules' forward pre-hooks. A parameter is needed by
    the module that holds it. If that one's hooks never fire (`nn.MultiheadAttention` reads its `out_proj`
    without calling it), by the nearest module around it whose hooks do.

    Attributes:
        position: of each parameter, the smallest first. Before anything was seen, by registration.
        needed_by: the parameters to have ready before a module runs. Only modules that were seen.
    """

    def __init__(self, model: nn.Module, parameters: Collection[nn.Parameter]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        registered = {module: i for i, module in enumerate(model.modules())}
        # Of each place where a parameter is held: the holder and the modules around it, nearest first.
        self._places: defaultdict[nn.Parameter, list[list[nn.Module]]] = defaultdict(list)
        for path, module in modules.items():
            around = [module]
            while path:
                path = path.rpartition(".")[0]
                around.append(modules[path])
            for p in module._parameters.values():
                if p is not None and p in parameters:
                    self._places[p].append(around)
        self.position = {
            p: min(registered[around[0]] for around in places) for p, places in self._places.items()
        }
        self.needed_by: dict[nn.Module, tuple[nn.Parameter, ...]] = {}
        self._seen: dict[nn.Module, int] = {}
        self._settled = 0

    def saw(self, module: nn.Module) -> None:
        """`module` is about to run in a training forward."""
        self._seen.setdefault(module, len(self._seen))

    @property
    def has_news(self) -> bool:
        """Whether modules were seen for the first time since `settle`."""
        return len(self._seen) > self._settled

    def settle(self) -> None:
        """Take what was seen into `position` and `needed_by`. A parameter that was placed stays placed."""
        self._settled = len(self._seen)
        needed_by = defaultdict(list)
        for p, places in self._places.items():
            users = {next((m for m in around if m in self._seen), None) for around in places}
            self.position[p] = min(-1 if m is None else self._seen[m] for m in users)
            for m in users - {None}:
                needed_by[m].append(p)
        self.needed_by = {m: tuple(parameters) for m, parameters in needed_by.items() if m is not None}

    def is_placed(self, p: nn.Parameter) -> bool:
        """Whether a module is known that runs before any use of `p`."""
        return bool(self.needed_by) and self.position[p] >= 0

    def needs(self, module: nn.Module) -> tuple[nn.Parameter, ...]:
        """The parameters that `module` needs; what it holds itself, while it has not been seen."""
        return self.needed_by.get(module) or tuple(p for p in module._parameters.values() if p is not None)
