"""`join`: what turns an ordinary torch training loop into one node of a decentralized run."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from compressors import Compressor, kernels
from gossip import fit, spec
from gossip.agreement import agree
from gossip.algorithms import Adoption, Algorithm
from gossip.averaged import averaged
from gossip.effects import Node
from gossip.engine import Engine
from gossip.envreport import installed
from gossip.errors import CheckpointError, UsageError
from gossip.flat import FlatModel
from gossip.forward_order import ForwardOrder
from gossip.gradient_engine import GradientEngine
from gossip.hooks import LoopHooks, Stepping, TraceHooks, attach_waits
from gossip.lazy import LazyOptimizer
from gossip.outbox import Outbox, Posting
from gossip.parameter_engine import ParameterEngine
from gossip.patience import Patience
from gossip.shard import Shard
from gossip.stats import Stats
from gossip.trace import Trace
from gossip.transport import world
from gossip.transport.base import Transport, mean_bytes
from gossip.transport.environment import env_rank
from topologies import Schedule, Topology

log = logging.getLogger("gossip")

_joined: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""The models of sessions that have not finished."""


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    algorithm: str | Algorithm = "dpsgd",
    topology: str | Topology | Schedule = "ring",
    compressor: str | Compressor | None = None,
    weights: str = "metropolis",
    seed: int = 0,
    overlap: bool = True,
    progress: str = "hooks",
    bucket_mb: float | None = None,
    order: str | None = None,
    timeout: float = 300.0,
    device: str | torch.device | None = None,
    trace: str | Path | None = None,
) -> Session:
    """Make this process (or virtual node) one node of a decentralized run. Collective.

    Every rank calls it with equal arguments. Afterwards all ranks hold rank 0's parameters and buffers, and
    every ``optimizer.step()`` takes part in a round of the algorithm; the training loop itself stays as it
    is.

    Args:
        model: float32 parameters. Moved to `device` in place, so an optimizer made before stays valid.
        optimizer: any torch optimizer over the model's parameters.
        algorithm, topology, compressor: a spec such as ``"dcd"``, ``"torus:2x4"``, ``"qsgd:bits=4"``, or an
            object. ``python -m gossip list`` shows them all. Without a compressor the method takes its own:
            ``identity`` for most.
        weights: the rule that turns a graph into a mixing matrix.
        seed: of the compressors' noise and the order of `Session.shard`; equal on all ranks.
        overlap: False exchanges inside ``step()`` alone (gradient methods: at the end of ``backward()``): the
            same numbers, nothing hidden.
        progress: ``"hooks"`` drives MPI, and rounds that have begun, from the model's hooks; ``"thread"``
            adds a thread that does it too, for models whose layers are few and long.
        bucket_mb: MiB per bucket. By default parameter methods use one bucket, gradient methods
            25 MiB, and 1 MiB for the first.
        order: in which order messages leave. ``"fifo"``: as they are ready, which is the default;
            ``"priority"``: the first layers first, and the next forward waits for each module's own, as in P3
            (gradient methods that send messages; `p3` has an option for it).
        timeout: seconds without a message before a `WatchdogError` that names who waits for whom.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"``; by default the model's own if it is on a GPU already,
            else a GPU by rank within the host (several ranks may share one), else the CPU.
        trace: a file that rank 0 writes in `finish`, for ui.perfetto.dev: what each rank did and when.

    Raises:
        UsageError: something does not fit; the message says what to type instead.
    """
    transport = world()
    if env_rank() > 0:
        kernels.say_nothing()
    method = spec.make_algorithm(algorithm)
    graph = spec.make_topology(topology, transport.size, weights)
    codec = spec.make_codec(method.default_compressor if compressor is None else compressor)
    if compressor is not None and not method.uses_compressor and not codec.lossless and transport.rank == 0:
        warnings.warn(f"{method.name} does not use a compressor: {codec} is ignored.", stacklevel=2)
    if progress not in ("hooks", "thread"):
        raise UsageError(f"progress={progress!r}: choose 'hooks' or 'thread'.")
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: give a number of seconds above 0, such as 300.")
    if not isinstance(seed, int):
        raise UsageError(f"seed={seed!r}: give a whole number.")
    if model in _joined:
        raise UsageError(
            "this model has joined already: call join once, or finish() its session before joining it anew."
        )
    if graph.size != transport.size:
        raise UsageError(
            f"the topology has {graph.size} nodes, but {transport.size} ranks are running: "
            f"start {graph.size} (mpirun -n {graph.size} …), or take a topology for {transport.size}."
        )
    fit.check_graph(method, graph)
    named = not (isinstance(topology, str) and topology == "ring")
    if named and not method.uses_graph and transport.rank == 0:
        warnings.warn(f"{method.name} does not use a graph: {graph.name} is ignored.", stacklevel=2)
    for text in (*method.check(graph, codec), *fit.doubts(method, graph, transport)):
        if transport.rank == 0:
            warnings.warn(text, stacklevel=2)
    fit.check_optimizer(model, optimizer)
    posting = fit.posting_of(method, order)
    if overlap and not posting.plain:
        fit.check_not_compiled(model)
    pieces, bucket = method.pieces(transport.size), fit.bucket_bytes(method, bucket_mb)
    model.to(fit.device_of(model, transport, device))
    elsewhere = {p for other in _joined for p in other.parameters() if p.requires_grad}
    fit.check_tensors(model, elsewhere)
    flat = FlatModel(model, bucket, pieces)
    for text in fit.misfits(optimizer, flat.names, elsewhere):
        if transport.rank == 0:
            warnings.warn(text, stacklevel=2)
    adoption = method.adopt(optimizer, flat.names)
    try:
        agree(
            transport,
            {
                "version of gossip": installed("gossip-train"),
                "algorithm": str(method),
                "topology": (graph.name, graph.fingerprint()),
                "compressor": str(codec),
                "seed": seed,
                "parameters": flat.signature(),
                "frozen parameters": _signature(flat.frozen),
                "buffers": _signature(dict(model.named_buffers())),
                "optimizer": [adoption.of(p) for p in flat.names],
                "buckets": [bucket.size for bucket in flat.buckets],
                "trace": trace is not None,
            },
        )
        for tensor in [flat.vector, *model.buffers(), *(p.data for p in flat.frozen.values())]:
            transport.broadcast(tensor)
        settings = Settings(method, graph, codec, seed, overlap, progress, posting, timeout)
        record = None if trace is None else Trace(trace, transport)
        return Session(model, optimizer, flat, transport, settings, adoption, record)
    except BaseException:
        adoption.release()  # or a second attempt would adopt an optimizer without momentum
        raise


def _signature(tensors: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, ...], str]]:
    return [(name, tuple(x.shape), str(x.dtype)) for name, x in tensors.items()]


@dataclass(frozen=True)
class Settings:
    """What `join` was told, settled."""

    algorithm: Algorithm
    topology: Topology | Schedule
    compressor: Compressor
    seed: int
    overlap: bool
    progress: str
    posting: Posting
    timeout: float


class Session:
    """One node's side of a run; `join` makes it.

    Attributes:
        rank, size: this node's place.
        device: where the model is; move batches there.
        algorithm, topology, compressor: the objects in use.
        world: the transport, for collective calls of your own (``world.allgather(value)``).
        stats: times, bytes and compression error; see `gossip.stats.Stats.take`.
        notes: lines about what the method has decided or taken over by itself; also logged, at INFO.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: FlatModel,
        transport: Transport,
        settings: Settings,
        adoption: Adoption,
        trace: Trace | None,
    ) -> None:
        algorithm, compressor, posting = settings.algorithm, settings.compressor, settings.posting
        self.algorithm, self.topology, self.compressor = algorithm, settings.topology, compressor
        self.world, self.rank, self.size = transport, transport.rank, transport.size
        self.device = flat.vector.device
        self.stats = Stats(trace)
        self._model, self._optimizer, self._flat, self._seed = model, optimizer, flat, settings.seed
        self._adoption = adoption
        segments = [bucket.segments for bucket in flat.buckets]
        self.notes = tuple(
            filter(None, [adoption.note, *algorithm.notes(segments, transport.size, compressor)])
        )
        if transport.rank == 0:
            for note in self.notes:
                log.info(note)
        tag = transport.reserve_tags(algorithm.slots * len(flat.buckets))
        outbox = Outbox(transport, posting, trace)
        lazy = None
        if settings.overlap and not posting.plain:
            lazy = LazyOptimizer(optimizer, flat, ForwardOrder(model, flat.names))
        nodes = [
            Node(
                transport=transport,
                outbox=outbox,
                topology=settings.topology,
                compressor=compressor.for_segments([segment.size for segment in bucket.segments]),
                stats=self.stats,
                segments=bucket.segments,
                device=self.device,
                bucket=b,
                seed=settings.seed,
                tag=tag + algorithm.slots * b,
                label=bucket.label(b),
                adopted=tuple(adoption.of(p) for p in bucket.parameters),
            )
            for b, bucket in enumerate(flat.buckets)
        ]
        averaging = [node for node in nodes if algorithm.means(node)]
        for channel, node in enumerate(averaging, transport.open_channels(len(averaging))):
            node.channel = channel
        parts = (flat, algorithm, nodes, outbox, transport, self.stats, settings.overlap, settings.timeout)
        self._engine: Engine
        if algorithm.kind == "gradient":
            self._engine = GradientEngine(*parts, lazy, fit.optimized(optimizer))
        else:
            self._engine = ParameterEngine(*parts)
        self._average_channel = transport.open_channels(1)
        self._timeout = settings.timeout
        self._stepping = Stepping(transport.rank)
        hooks = LoopHooks(self._engine, flat, optimizer, adoption, self._stepping, lazy is not None)
        trace_hooks = None if trace is None else TraceHooks(trace, flat, model, optimizer)
        self._handles = [
            *(trace_hooks.attach_first() if trace_hooks is not None else ()),
            *hooks.attach(model, settings.overlap),
            *(attach_waits(self._engine, model, optimizer) if lazy is not None else ()),
            *(trace_hooks.attach_last() if trace_hooks is not None else ()),
        ]
        threaded = settings.progress == "thread" and transport.needs_polling
        self._stop_progress = _progress_thread(transport, self._engine) if threaded else lambda: None
        self._rounds_before = 0  # that a loaded state counts, and this session has not made
        self._finished = False
        adoption.begin()
        _joined.add(model)

    # -- training ----------------------------------------------------------------------------------

    @property
    def round(self) -> int:
        """Rounds finished so far."""
        return self._engine.round

    def shard(self, dataset: Dataset[Any], batch_size: int, shuffle: bool = True, **loader: Any) -> Shard:
        """This rank's part of a map-style dataset, as a loader: one epoch per iteration, on all ranks alike.

        The parts are disjoint and cover the dataset; every rank gets the same number of batches. `loader`
        goes to torch's DataLoader (``num_workers=2`` and so on).
        """
        return Shard(
            dataset, batch_size, rank=self.rank, size=self.size, shuffle=shuffle, seed=self._seed, **loader
        )

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate gradients; the next one outside exchanges their sum."""
        return self._engine.no_sync()

    def skip(self) -> None:
        """Call in place of an ``optimizer.step()`` that this rank skips (a GradScaler found infinities)."""
        self._stepping.stepped()
        self._engine.skip()

    def wait(self) -> None:
        """Return when every message of the finished rounds has been applied."""
        self._engine.drain()

    def finish(self) -> None:
        """End this node's part: apply what is in flight, let go of the model, wait for the others.

        Beside an exception (``finally: node.finish()``) it only lets go of the model, so that this rank and
        the others learn of the exception. An ``except`` block counts, too: after an error that has been dealt
        with, call it behind the block.
        """
        if self._finished:
            return
        self._finished = True
        _joined.discard(self._model)
        if sys.exc_info()[1] is not None:
            self._detach()
            return
        self.wait()
        self._engine.say_finished()
        self._stepping.finish()
        on_a_network = self.world.local_size < self.size  # inside one host bytes cost next to nothing
        if self.rank == 0 and on_a_network and (text := self._compression_loss()):
            warnings.warn(text, stacklevel=2)
        self._detach()
        if self.stats.trace is not None:
            self.stats.trace.write()
        self.world.barrier()

    def _detach(self) -> None:
        """Let go of the model and the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._adoption.release()
        self._stop_progress()

    def _compression_loss(self) -> str | None:
        """A warning if compression did not pay; a gradient method's alternative is an all-reduce."""
        saved = self.stats.saved_bytes
        if self.algorithm.kind == "gradient" and saved:
            saved = (self.round - self._rounds_before) * self.allreduce_bytes - self.stats.bytes_sent
        return self.stats.compression_loss(saved, self.world.fastest) if self.stats.saved_bytes else None

    # -- the averaged model ------------------------------------------------------------------------

    def _mean(self, x: Tensor) -> Tensor:
        """The mean of x over all ranks, outside the books: evaluation is not training traffic."""
        pending = self.world.start_mean(x, self._average_channel, counted=False)
        patience = Patience(self.world, self._timeout)
        self.world.wait(lambda: pending.done or patience.is_out(), math.inf)
        if not pending.done:
            raise UsageError(
                f"rank {self.rank}: not all ranks have come to this call for {self._timeout:g} s. "
                "averaged_state_dict and consensus_distance are collective: every rank calls them, between "
                "the same steps."
            )
        return pending.value()

    def averaged_state_dict(self, buffers: str = "average") -> dict[str, Any]:
        """The model whose parameters are the mean over all nodes, as a plain state_dict. Collective.

        Frozen parameters that differ between the nodes are averaged, too; what is equal keeps its bits.

        Args:
            buffers: ``"average"`` averages floating-point buffers (BN statistics) that differ, too;
                ``"local"`` keeps this rank's.
        """
        if buffers not in ("average", "local"):
            raise UsageError(f"buffers={buffers!r}: choose 'average' or 'local'.")
        self._engine.catch_up()
        return averaged(self._model, self._flat, self.world, self._mean, buffers == "average")

    def consensus_distance(self) -> float:
        """sqrt(1/n Σ_i ‖x_i − x̄‖²): how far the nodes' models are from their mean. Collective."""
        self._engine.catch_up()
        distance = torch.linalg.vector_norm(self._flat.vector - self._mean(self._flat.vector))
        squares = self.world.allgather(float(distance) ** 2)
        return math.sqrt(sum(squares) / self.size)

    def gradient_norm(self) -> float:
        """The L2 norm of the gradient that the last `step()` has applied, or will, on this rank."""
        if self._engine.averages_gradients:
            self.wait()
            return float(torch.linalg.vector_norm(self._flat.gradient))
        norms = [torch.linalg.vector_norm(p.grad) for p in self._flat.names if p.grad is not None]
        return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0

    @property
    def allreduce_bytes(self) -> int:
        """What an exact all-reduce of this model would send per rank and step: 2(n−1)/n · 4d."""
        return mean_bytes(self._flat.size, self.size)

    # -- state -------------------------------------------------------------------------------------

    def algorithm_state(self) -> list[dict[str, Any]]:
        """The algorithm's state of each bucket, live (not a copy), after its messages have been applied."""
        self.wait()
        return [lane.state for lane in self._engine.lanes]

    def _identity(self) -> dict[str, Any]:
        """What a state belongs to: with another of these it would go on differently.

        "layout" is a digest of the parameters' names, shapes, strides, hyper-parameters and buckets;
        "optimizer" what the method has taken over from it.
        """
        sizes = [bucket.size for bucket in self._flat.buckets]
        adopted = [str(self._adoption.of(p) or "") for p in self._flat.names]
        parts = repr((self._flat.signature(), sizes, adopted))
        layout = hashlib.sha256(parts.encode()).hexdigest()[:16]
        return {
            "algorithm": str(self.algorithm),
            "compressor": str(self.compressor),
            "topology": self.topology.fingerprint(),
            "seed": self._seed,
            "size": self.size,
            "rank": self.rank,
            "buckets": f"{len(sizes)} of at most {max(sizes)} values",
            "optimizer": "; ".join(dict.fromkeys(adopted)),
            "layout": layout,
        }

    def state_dict(self) -> dict[str, Any]:
        """This node's algorithm state, round and parameters: tensors, numbers and strings only.

        Save it with the model's, the optimizer's and your sampler's. Every rank saves its own, between steps.
        """
        return {**self._identity(), **self._engine.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`, bitwise. Collective: after join, before the first forward.

        Raises:
            CheckpointError: the state belongs to another method, codec, graph, seed, rank, number of ranks,
                cut into buckets, memory layout or momentum; or the ranks' states are of different rounds.
        """
        if absent := [name for name in ("lanes", *self._identity()) if name not in state]:
            raise CheckpointError(
                f"this is no state of a session, or not a whole one: {absent[0]!r} is missing"
            )
        for name, value in self._identity().items():
            if (written := state.get(name)) != value:
                raise CheckpointError(
                    f"the checkpoint was written with {name} = {written}, but this run has {value}. "
                    "Resume with the options it was started with."
                )
        rounds = self.world.allgather(min(lane["t"] for lane in state["lanes"]))
        if len(set(rounds)) > 1:
            raise CheckpointError(
                f"the ranks' states are of different rounds ({', '.join(map(str, rounds))}): load those of "
                "the newest step for which every rank has one."
            )
        self._engine.load_state_dict(state)
        self._stepping.on_restore()
        self._rounds_before = self.round


def _progress_thread(transport: Transport, engine: Engine) -> Callable[[], None]:
    """Drive the transport, and what can go on without the model, from a thread; returns what stops it."""
    stop, threads = threading.Event(), torch.get_num_threads()

    def drive() -> None:
        torch.set_num_threads(threads)  # new threads start with torch's default
        while not stop.wait(0.001):
            transport.poll()
            engine.serve()

    thread = threading.Thread(target=drive, name="gossip progress", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end
