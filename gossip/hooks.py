"""Where a session meets an ordinary torch loop: hooks on the model, its parameters and the optimizer."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from gossip.algorithms import Adoption
from gossip.engine import Engine
from gossip.errors import UsageError
from gossip.fit import optimized
from gossip.flat import FlatModel
from gossip.trace import Trace

UNSTEPPED = 100
"""So many backward passes without any step are more than a loop accumulates."""


class Hook:
    """Calls the engine from a hook of torch. A copy or pickle of it does nothing: models stay copyable."""

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return None if self._call is None else self._call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook(None)

    def __reduce__(self) -> tuple[type[Hook], tuple[None]]:
        return Hook, (None,)


class ForwardHook(Hook):
    """A hook that a compiled model goes without.

    Rounds then begin, and messages move, at the hooks of gradients and optimizer.
    """

    def __call__(self, *args: Any) -> Any:
        return None if torch.compiler.is_dynamo_compiling() else super().__call__(*args)


class Stepping:
    """Warns (on rank 0) when the model changes, but not by the optimizer that was given to `join`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._backwards = 0  # since the optimizer has made a step, or been skipped
        self._stepped = self._told = self._loaded = False

    def stepped(self) -> None:
        """The optimizer makes a step, or the user says why it does not."""
        self._backwards, self._stepped = 0, True
        if self._loaded:
            self._loaded = False
            self._warn(
                "the model's state was loaded after join: the method takes what has changed for a part of "
                "the local step, and its messages may lose some. Load it before join, or this session's "
                "state after it (node.load_state_dict)."
            )

    def on_load(self) -> None:
        """The model's state has been loaded."""
        self._loaded = True

    def on_restore(self) -> None:
        """The session's state has been loaded, which holds the parameters."""
        self._loaded = False

    def on_backward(self) -> None:
        """A backward pass."""
        self._backwards += 1
        if self._backwards == UNSTEPPED:
            self._warn_of_backwards()

    def finish(self) -> None:
        """The session ends: a loop too short for the warning above gets it now."""
        if not self._stepped and 1 < self._backwards < UNSTEPPED:
            self._warn_of_backwards()

    def _warn_of_backwards(self) -> None:
        if not self._told:
            self._told = True
            self._warn(
                f"{self._backwards} backward passes, and the optimizer given to join has not made a step "
                f"{'since' if self._stepped else 'yet'}: nothing has been exchanged. Is it the one whose "
                "step() your loop calls?"
            )

    def _warn(self, text: str) -> None:
        if self._rank == 0:
            warnings.warn(text, stacklevel=2)


class LoopHooks:
    """Tells the engine where the user's loop is: in a forward, a backward, or a step of the optimizer.

    A step may call that of its base class, which has the same hooks: they count how deep it is. A step that
    fails has no last hook, so whatever cannot happen inside a step begins the count anew: more steps than
    classes that have one, or a forward or backward that is not in a closure.
    """

    def __init__(
        self,
        engine: Engine,
        flat: FlatModel,
        optimizer: torch.optim.Optimizer,
        adoption: Adoption,
        stepping: Stepping,
        lazy: bool,
    ) -> None:
        self._engine, self._flat, self._optimizer = engine, flat, optimizer
        self._adoption, self._stepping, self._lazy = adoption, stepping, lazy
        self._optimized = optimized(optimizer)
        self._depth, self._in_closure = 0, False

    def attach(self, model: nn.Module, overlap: bool) -> Iterator[Any]:
        """Put them where they belong; yields what removes each."""
        # Before other hooks, such as weight_norm's, which computes from the parameters that these bring.
        if self._lazy:
            on_forward, on_module = _untraced(self._on_forward), _untraced(self._on_module)
        else:
            on_forward, on_module = ForwardHook(self._on_forward), ForwardHook(self._on_module)
        yield model.register_forward_pre_hook(on_forward, prepend=True)
        if not self._engine.averages_gradients:
            yield model.register_load_state_dict_post_hook(Hook(lambda *_: self._stepping.on_load()))
        yield self._optimizer.register_step_pre_hook(_untraced(self._on_step_begin))
        yield self._optimizer.register_step_post_hook(_untraced(self._on_step_end))
        yield next(iter(self._flat.names)).register_post_accumulate_grad_hook(Hook(self._on_backward))
        if overlap or self._engine.averages_gradients:
            for p in self._flat.names:
                yield p.register_post_accumulate_grad_hook(Hook(self._engine.on_gradient))
        if overlap and self._engine.moves_in_forward:
            for module in model.modules():
                if module is not model and _sees(model, module):
                    yield module.register_forward_pre_hook(on_module, prepend=True)

    def _outside_of_steps(self) -> None:
        """Whatever has become of the last step, it is over."""
        if not self._in_closure:
            self._depth = 0

    def _on_forward(self, model: nn.Module, *_: Any) -> None:
        self._outside_of_steps()
        learning = model.training and torch.is_grad_enabled()
        if learning:
            self._engine.on_forward()
        self._engine.on_module(model, learning)

    def _on_module(self, module: nn.Module, *_: Any) -> None:
        self._engine.on_module(module, torch.is_grad_enabled())

    def _on_backward(self, *_: Any) -> None:
        self._outside_of_steps()
        self._stepping.on_backward()

    def _on_step_begin(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: Any) -> Any:
        if 0 < self._depth < _steps_of(optimizer) or self._engine.applying:
            self._depth += 1
            return None
        self._depth = 0
        changed = self._begin_step(optimizer, args, options)
        self._depth = 1  # and not before: what has been refused is no step
        return changed

    def _begin_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: Any) -> Any:
        self._check_parameters()
        self._adoption.check()
        self._stepping.stepped()
        closure: Callable[[], Any] | None = options.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None and self._lazy:
            raise UsageError(
                "optimizer.step(closure) computes gradients, but here they arrive after step(). Call "
                "backward() before step(), or use --no-overlap (join(overlap=False)). (An optimizer that "
                "calls its closure several times, as LBFGS does, needs a method that exchanges parameters.)"
            )
        self._engine.on_step_begin(closure is not None)
        if closure is None:
            return None
        if "closure" in options:
            return args, {**options, "closure": self._marked(closure)}
        return (optimizer, self._marked(closure), *args[2:]), options

    def _marked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            self._in_closure = True
            try:
                return closure()
            except BaseException:
                self._depth = 0
                raise
            finally:
                self._in_closure = False

        return call

    def _on_step_end(self, *_: Any) -> None:
        if self._depth == 0:
            raise UsageError(
                f"{type(self._optimizer).__name__}.step() has run the model by itself, or gone on after "
                "its closure failed: what belongs to the step cannot be told. Let it evaluate the model "
                "by step(closure) only."
            )
        self._depth -= 1
        if self._depth == 0 and not self._engine.applying:
            self._engine.on_step_end()

    def _check_parameters(self) -> None:
        if optimized(self._optimizer) != self._optimized:
            raise UsageError(
                "the optimizer's parameters changed after join (add_param_group?). Add them before join."
            )
        for name, p in self._flat.frozen.items():
            if p.requires_grad and p in self._optimized:
                raise UsageError(
                    f"parameter {name!r} was frozen when join was called, and is not any more: each "
                    "rank would train it alone. Unfreeze it before join, or finish() and join anew."
                )
        if self._engine.averages_gradients:
            for p, name in self._flat.names.items():
                if not p.requires_grad:
                    raise UsageError(
                        f"parameter {name!r} was frozen after join. It would get a gradient of zero, and "
                        "momentum and weight decay would still move it. Freeze it before join, or finish() "
                        "and join anew."
                    )


def attach_waits(engine: Engine, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """For updates that come after `step()`: what reads or replaces the whole model waits for them."""

    def catch_up(*_: Any) -> None:
        engine.catch_up()

    for module in model.modules():
        yield module.register_state_dict_pre_hook(Hook(catch_up))
        yield module._register_load_state_dict_pre_hook(Hook(catch_up))  # public from torch 2.5 on only
    yield optimizer.register_state_dict_pre_hook(Hook(catch_up))
    yield optimizer.register_load_state_dict_pre_hook(Hook(catch_up))


class TraceHooks:
    """For a picture of what the model computes: modules forward, gradients, the optimizer.

    What the engine does in its hooks belongs to none of these, so some are called before it, some after.
    """

    def __init__(
        self, trace: Trace, flat: FlatModel, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._trace, self._flat, self._model, self._optimizer = trace, flat, model, optimizer

    def attach_first(self) -> Iterator[Any]:
        """Those before the engine's: a computation ends."""
        trace = self._trace
        for p, name in self._flat.names.items():
            yield p.register_post_accumulate_grad_hook(
                Hook(lambda *_, name=name: trace.lap(f"backward {name}"))
            )
        yield self._optimizer.register_step_post_hook(Hook(lambda *_: trace.lap("optimizer")))

    def attach_last(self) -> Iterator[Any]:
        """Those after the engine's: a computation begins, or a module has run."""
        trace = self._trace
        for p in self._flat.names:
            yield p.register_post_accumulate_grad_hook(Hook(lambda *_: trace.restart()))
        yield self._optimizer.register_step_pre_hook(Hook(lambda *_: trace.restart()))
        running: defaultdict[nn.Module, list[float]] = defaultdict(list)

        def begin(module: nn.Module, *_: Any) -> None:
            running[module].append(time.perf_counter())

        for name, module in self._model.named_modules():

            def end(module: nn.Module, *_: Any, name: str = name) -> None:
                trace.span("compute", f"forward {name}".strip(), running[module].pop(), time.perf_counter())
                trace.restart()

            is_leaf = _sees(self._model, module) and next(module.children(), None) is None
            if module is self._model or is_leaf:
                yield module.register_forward_pre_hook(Hook(begin))
                yield module.register_forward_hook(Hook(end))


def _steps_of(optimizer: torch.optim.Optimizer) -> int:
    """How many steps with hooks can be inside one another now: its class's, its base class's, and so on."""
    return sum(hasattr(vars(kind).get("step"), "hooked") for kind in type(optimizer).__mro__)


def _untraced(call: Callable[..., Any]) -> Hook:
    """A hook that a compiled model or optimizer calls as it is."""
    return Hook(torch.compiler.disable(call))


def _sees(model: nn.Module, module: nn.Module) -> bool:
    """Whether a module inside the model can have hooks: they would break the graph of a compiled one."""
    return not hasattr(model, "_orig_mod") and not isinstance(module, torch.jit.ScriptModule)
