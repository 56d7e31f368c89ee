"""What every method has in common: hyper-parameters in, a sans-IO generator out."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from compressors import PaperSize, Shape
from gossip.effects import SLOTS, Effect, Expect, Node
from gossip.outbox import Posting

if TYPE_CHECKING:
    from compressors import Compressor
    from gossip.flat import Pieces, Segment
    from topologies import Schedule, Topology

State = dict[str, Any]
"""Named tensors, or dicts of tensors by rank: ``{"hat": {1: tensor, 7: tensor}}``."""

Steps = Generator[Effect, Any, None]
"""What `Algorithm.step` returns: it yields what it waits for and is resumed with what has come."""

ALGORITHMS: dict[str, type[Algorithm]] = {}
A = TypeVar("A", bound="type[Algorithm]")


def register(name: str) -> Callable[[A], A]:
    """Class decorator: make an algorithm known as `name` on the command line."""

    def add(cls: A) -> A:
        if name in ALGORITHMS:
            raise ValueError(f"two algorithms are named {name!r}")
        cls.name = name
        ALGORITHMS[name] = cls
        return cls

    return add


def option(default: Any, help: str, **kwargs: Any) -> Any:
    """A dataclass field with a default and a line of help for ``python -m gossip list``."""
    return dataclasses.field(default=default, metadata={"help": help}, **kwargs)


class Adoption:
    """What a method has taken over from the user's optimizer: here, nothing."""

    note = ""
    """One line for `Session.notes`."""

    def of(self, p: nn.Parameter) -> Any:
        """What was taken over for `p`; the bucket's nodes find it in `Node.adopted`."""
        return None

    def begin(self) -> None:
        """The node has joined: from here on the method does it."""

    def check(self) -> None:
        """Raise UsageError if the user has changed in the optimizer what the method has taken over."""

    def release(self) -> None:
        """Give it back."""


@dataclass(frozen=True)
class Algorithm(ABC):
    """A method: a frozen dataclass of its hyper-parameters.

    One instance serves all buckets and rounds; everything that changes lives in the state that `init` makes.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    kind: ClassVar[str]
    """``"parameter"``: waits for `node.update()`; ``"gradient"``: waits for `node.gradient()`."""
    needs_symmetric: ClassVar[bool] = False
    """Refuses a graph that changes from round to round, and a W that is not symmetric."""
    uses_graph: ClassVar[bool] = True
    """Nodes talk to their neighbours; else to all nodes, or to none."""
    uses_compressor: ClassVar[bool] = True
    """Messages are the compressor's; else `messages` says what travels."""
    messages: ClassVar[str] = "float32"
    """What the messages are where the compressor is not used."""
    default_compressor: ClassVar[str] = "identity"
    """The compressor of `join` where the user names none."""
    sends_messages: ClassVar[bool] = True
    """Calls `node.send()`: there is something to arrange in an order."""
    refuses_edits: ClassVar[str] = ""
    """Why a gradient must not be changed between backward and step, and what to do; "" where it may be."""
    hides: ClassVar[bool] = False
    """A parameter method's exchange has the whole forward and backward pass to hide behind."""
    slots: ClassVar[int] = SLOTS
    """Different messages per peer, bucket and round."""

    @property
    def every(self) -> int:
        """Optimizer steps from one round to the next."""
        return 1

    @property
    def posting(self) -> Posting | None:
        """How messages leave, where the method says so itself. It implies a wait per module (lazy.py)."""
        return None

    def pieces(self, nodes: int) -> Pieces | None:
        """How layers are cut into slices, each a bucket of its own; None for buckets of whole parameters."""
        return None

    @property
    def one_bucket(self) -> bool:
        """Whether a round needs the whole gradient at once."""
        return False

    def init(self, x: Tensor, node: Node) -> State:
        """State of one bucket, from the common start x (float32 [n]), equal on all ranks."""
        return {}

    @abstractmethod
    def step(self, x: Tensor, state: State, node: Node) -> Steps:
        """One round on one bucket. Before its first yield it may send, but changes neither x nor state."""

    def expects(self, node: Node) -> tuple[Expect, ...]:
        """The messages this round will receive; they are posted when the round starts."""
        return tuple(Expect(j, exact=not self.uses_compressor) for j in node.in_neighbors)

    def means(self, node: Node) -> tuple[int, ...]:
        """The lengths of the vectors that this round averages exactly, by `node.mean`; equal on all ranks.

        A bucket that averages in its rounds has a communicator of its own.
        """
        return ()

    def recurring(self) -> range:
        """Rounds whose traffic repeats in a long run, once any warm-up is over."""
        return range(1, 2)

    def paper_size(self, shapes: Sequence[Shape], compressor: Compressor) -> PaperSize:
        """One node's message about tensors of these shapes, in the model's order, as its paper counts it."""
        if self.uses_compressor:
            return compressor.paper_size(shapes)
        return PaperSize(4 * sum(map(math.prod, shapes)), "4 B a value")

    def check(self, topology: Topology | Schedule, compressor: Compressor) -> Iterator[str]:
        """Warnings about combinations that theory or the literature says will fail."""
        return iter(())

    def adopt(self, optimizer: Optimizer, parameters: Mapping[nn.Parameter, str]) -> Adoption:
        """Take over from the user's optimizer what the method itself does for these (named) parameters.

        Raises:
            UsageError: the method cannot do what this optimizer does.
        """
        return Adoption()

    def notes(self, buckets: Sequence[Sequence[Segment]], size: int, compressor: Compressor) -> Iterator[str]:
        """What the method has decided by itself on `size` nodes, for `Session.notes`."""
        return iter(())

    def __str__(self) -> str:
        """The canonical spec: name, and the options that differ from their defaults."""
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}:{','.join(changed)}" if changed else self.name


@dataclass(frozen=True)
class ParameterMethod(Algorithm):
    """Mixes parameters: one round every `every` optimizer steps."""

    kind: ClassVar[str] = "parameter"

    every: int = option(1, "local optimizer steps between two exchanges", kw_only=True)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every}: give a whole number of local steps, 1 or more")


@dataclass(frozen=True)
class GradientMethod(Algorithm):
    """Replaces gradients, bucket by bucket, while backward is still producing the others."""

    kind: ClassVar[str] = "gradient"
    uses_graph: ClassVar[bool] = False

    def expects(self, node: Node) -> tuple[Expect, ...]:
        return ()
