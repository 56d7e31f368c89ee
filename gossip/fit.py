"""Whether method, graph, optimizer, model and machine fit together, and what follows from join's options."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Set

import torch
from torch import nn

from gossip.algorithms import Algorithm
from gossip.errors import UsageError
from gossip.outbox import IN_FLIGHT, Posting
from gossip.transport.base import Transport
from topologies import Schedule, Topology

GRADIENT_BUCKETS_MB = (1.0, 25.0)
"""The first bucket of gradient methods, and all others, are of about these sizes (MiB), as torch's DDP has
them: the small first one lets models overlap that are small, or whose last layers are large."""


def bucket_bytes(method: Algorithm, bucket_mb: float | None = None) -> tuple[int, ...] | None:
    """The sizes of buckets for `FlatModel` (None: one of everything), from `join`'s option `bucket_mb`.

    Raises:
        UsageError: no such size, or the method does not take one.
    """
    if bucket_mb is not None:
        if not isinstance(bucket_mb, int | float) or not 0 < bucket_mb < math.inf:
            raise UsageError(f"bucket_mb={bucket_mb!r}: give a size in MiB above 0, or leave it out.")
        if method.one_bucket:
            raise UsageError(
                f"bucket_mb={bucket_mb:g}: {method} needs the whole gradient at once. Leave bucket_mb out."
            )
        if method.pieces(1) is not None:
            name = method.name
            raise UsageError(f"bucket_mb={bucket_mb:g}: {name} cuts layers itself. Type {name}:slice=…")
        return (int(bucket_mb * 2**20),)
    if method.kind == "gradient" and not method.one_bucket:
        return tuple(int(size * 2**20) for size in GRADIENT_BUCKETS_MB)
    return None


def check_graph(method: Algorithm, graph: Topology | Schedule) -> None:
    """Raise UsageError where the method does not work on this graph."""
    if method.needs_symmetric and not (graph.is_static and graph.is_symmetric):
        what = "changes from round to round" if not graph.is_static else "has a W that is not symmetric"
        raise UsageError(
            f"{method.name} keeps replicas of its neighbours and needs a fixed, symmetric W, "
            f"but {graph.name} {what}. Take an undirected graph (ring, torus, …), or algorithm dpsgd."
        )


def doubts(method: Algorithm, graph: Topology | Schedule, transport: Transport) -> Iterator[str]:
    """Warnings about what works, but hardly as it was meant."""
    if method.uses_graph and graph.is_static and not graph.is_doubly_stochastic:
        yield (
            f"the columns of {graph.name}'s W do not sum to 1: {method.name} then trains for a weighted mean "
            "of the nodes' losses, while tests take the plain mean of their models."
        )
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if (
        transport.needs_polling
        and transport.local_size > 1 < threads
        and threads * transport.local_size > cores
    ):
        yield (
            f"{transport.local_size} ranks of {threads} threads share the {cores} cores of this host and get "
            "in each other's way: export OMP_NUM_THREADS=1 (or torch.set_num_threads(1)) is faster."
        )


def posting_of(method: Algorithm, order: str | None) -> Posting:
    """How messages leave, from `join`'s option `order`. Raises UsageError where it does not fit."""
    if order not in (None, "fifo", "priority"):
        raise UsageError(f"order={order!r}: choose 'fifo' or 'priority'.")
    if method.posting is not None:
        if order is not None:
            raise UsageError(
                f"order={order!r}: {method.name} has an option for it. "
                f"Type --algorithm {method.name}:order={order}."
            )
        return method.posting
    if order != "priority":
        return Posting()
    if method.kind != "gradient" or not method.sends_messages:
        means = method.kind == "gradient"
        why = "takes means over all nodes, which have no order" if means else "exchanges parameters"
        raise UsageError(
            f"order='priority': {method.name} {why}. Take p3, or a gradient method that sends messages: "
            "qsgd, signsgd, dgc, gradient-dropping."
        )
    return Posting(by_priority=True, in_flight=IN_FLIGHT)


def applies_lazily(method: Algorithm, order: str | None, overlap: bool) -> bool:
    """Whether the optimizer works module by module when its gradients are there (lazy.py), not in `step`."""
    return overlap and not posting_of(method, order).plain


def check_not_compiled(model: nn.Module) -> None:
    """Raise UsageError for a compiled model where every module has to wait for its own gradients."""
    if hasattr(model, "_orig_mod") or any(m._compiled_call_impl is not None for m in model.modules()):
        raise UsageError(
            "the model is compiled, and every module must wait for its own gradients before it runs, which "
            "torch.compile traces away. Use the model as it is, or --no-overlap (join(overlap=False))."
        )


def optimized(optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    """Every parameter that the optimizer holds."""
    return {p for group in optimizer.param_groups for p in group["params"]}


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError for an optimizer of another model."""
    trainable = {p for p in model.parameters() if p.requires_grad}
    if not trainable & optimized(optimizer):
        raise UsageError(
            "the optimizer holds none of the model's parameters. Make it from this model's parameters(): "
            "torch.optim.SGD(model.parameters(), lr=0.1)."
        )


def check_tensors(model: nn.Module, elsewhere: Set[nn.Parameter]) -> None:
    """Raise UsageError for parameters of another session, or in one memory, and buffers that cannot travel.

    Args:
        elsewhere: the trainable parameters of other models that have joined.
    """
    at: dict[int, str] = {}
    for name, p in model.named_parameters():
        if p in elsewhere:
            raise UsageError(
                f"parameter {name!r} belongs to another model that has joined: join one that holds them all, "
                "or finish() that session first."
            )
        if isinstance(p, nn.UninitializedParameter) or not p.numel():
            continue
        other = at.setdefault(p.data_ptr(), name)
        if other != name:
            raise UsageError(
                f"parameters {other!r} and {name!r} share their memory, which join would end. Make them one "
                f"nn.Parameter: model.{name} = model.{other}."
            )
    for name, x in model.named_buffers():
        sparse = x.layout != torch.strided
        if sparse or any(stride == 0 and n > 1 for stride, n in zip(x.stride(), x.shape, strict=True)):
            what = "is sparse" if sparse else "is expanded: several of its values are one in memory"
            remedy = "keep it as a plain attribute, equal on all ranks" if sparse else "clone() it"
            raise UsageError(f"buffer {name!r} {what}, and join could not make it rank 0's: {remedy}.")


def misfits(
    optimizer: torch.optim.Optimizer, trained: Mapping[nn.Parameter, str], elsewhere: Set[nn.Parameter]
) -> Iterator[str]:
    """Warnings about parameters that only one of optimizer and model has.

    Args:
        trained: the model's, named.
        elsewhere: those of other models that have joined.
    """
    held = {p for p in optimized(optimizer) if p.requires_grad}
    if left := [name for p, name in trained.items() if p not in held]:
        yield (
            f"{len(left)} trainable parameters ({left[0]}, …) are not in the optimizer given to join, and "
            "travel all the same. Unless another optimizer trains them, freeze them before join: "
            "requires_grad_(False)."
        )
    if alone := len(held - trained.keys() - elsewhere):
        yield (
            f"{alone} parameters in the optimizer are not in the model given to join: each rank trains them "
            "alone, unless their model joins too. Join a module that holds them all."
        )


def device_of(model: nn.Module, transport: Transport, wanted: str | torch.device | None) -> torch.device:
    """Where the model is to be: `wanted`, else its own GPU, else one by rank, else the CPU.

    Raises:
        UsageError: there is no such device here.
    """
    if wanted is not None:
        try:
            device = torch.device(wanted)
        except RuntimeError:
            device = torch.device("meta")
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"device={wanted}: choose cpu, cuda, or one GPU such as cuda:0.")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"device={wanted}: this torch sees no GPU here. Use --device cpu.")
        if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
            raise UsageError(
                f"device={wanted}: this host has {torch.cuda.device_count()} GPU(s), numbered from 0."
            )
        if device != torch.device("cuda"):
            return device
    first = next(model.parameters(), None)
    if first is not None and first.device.type != "cpu":
        return first.device
    if torch.cuda.is_available():
        return torch.device("cuda", transport.local_rank % torch.cuda.device_count())
    return torch.device("cpu")
