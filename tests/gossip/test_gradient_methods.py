"""The gradient-compression methods: agreement with the float64 oracle, laws, and the edges."""

from __future__ import annotations

import io
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gossip
from compressors import LayerTopK, relative_error
from gossip.algorithms import ALGORITHMS, DGC, GradientMethod, exchange
from gossip.algorithms.exchange import ROUND_TRIP, parts, scatters
from gossip.algorithms.exchange import sent as bytes_sent
from gossip.errors import DivergedError, UsageError
from gossip.flat import Segment
from gossip.session import Session
from gossip.spec import make_algorithm, make_codec, make_topology
from tests import gradient_oracle as oracle
from tests.quadratics import (
    DECAY,
    LR,
    MOMENTUM,
    D,
    Quadratic,
    assert_close,
    curvature,
    loop,
    simulate,
    slope,
    start,
)
from tests.training import Net, backward_in_parts, batches, flat, sgd, train

SIZES = (1, 2, 3, 5, 8)
DENSE, WEIGHT = slice(0, 7), slice(7, D)  # the two tensors of Quadratic
SPARSE = ("dgc:warmup_steps=0,ratio=0.1", "gradient-dropping:ratio=0.1")
QUANTIZED = ("qsgd", "qsgd:ef=true", "qsgd:gather=scatter", "signsgd", "signsgd:gather=scatter")
SPECS = (*QUANTIZED, "powersgd", *SPARSE)
CHANGED = ("dgc:clip=0.5", "dgc:warmup_steps=6", "dgc:values=fp16,indices=uint32", "powersgd:rank=1")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


def test_every_method_is_here() -> None:
    known = {spec.partition(":")[0] for spec in SPECS} | {"allreduce", "p3"}  # p3: test_p3.py
    assert {name for name, cls in ALGORITHMS.items() if issubclass(cls, GradientMethod)} <= known


def gradients(n: int) -> Callable[[oracle.Array, int], oracle.Array]:
    a = curvature(n).double().numpy()
    return lambda X, k: a * X - slope(n, k).double().numpy()


def check(
    run: Any, method: oracle.Method, X: oracle.Array, momentum: float = MOMENTUM, decay: float = DECAY
) -> None:
    """All nodes are bitwise equal after every step, and follow the oracle; X is its x, updated in place."""
    n = run.X.shape[1]
    np.testing.assert_array_equal(run.X, np.broadcast_to(run.X[:, :1], run.X.shape))
    expected = oracle.train(method, gradients(n), X, len(run.X) - 1, LR, momentum, decay)
    assert_close(run.X[1:, 0], np.stack(expected), 2e-5)


def first(run: Any) -> oracle.Array:
    return run.X[0, 0].astype(np.float64)


# -- agreement with the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codec", "n"),
    [
        *(("qsgd:bits=4,block=16", n) for n in SIZES),
        ("identity", 3),
        ("sign", 3),
        ("onebit", 3),
        ("randk:ratio=0.25", 3),
    ],
)
@pytest.mark.parametrize("spec", ["qsgd", "qsgd:ef=true", "signsgd"])
def test_error_feedback_and_quantized_means(spec: str, codec: str, n: int) -> None:
    run = simulate(spec, n, codec, steps=12)
    ef, omega = spec != "qsgd", relative_error(make_codec(codec)) ** 2
    scaled = ef and make_codec(codec).unbiased and omega > 0.05
    assert scaled == (ef and codec.startswith("randk"))
    c = float(f"{1 / (1 + omega):.3g}") if scaled else 1.0
    check(run, oracle.error_feedback(n, D, run.recorded(), c, ef), first(run))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ef", [True, False])
def test_scattered_means_quantize_twice(ef: bool, n: int) -> None:
    spec = "signsgd:gather=scatter" if ef else "qsgd:gather=scatter"
    run = simulate(spec, n, "sign:block=4", steps=12)
    C = oracle.sign(4)
    method = oracle.scattered(n, D, C, ef) if n > 1 else oracle.error_feedback(n, D, lambda V, t: C(V), ef=ef)
    check(run, method, first(run))


def groups(momentum: float, nesterov: bool, decay: float) -> Callable[[nn.Module], torch.optim.SGD]:
    return lambda model: torch.optim.SGD(
        model.parameters(), lr=LR, momentum=momentum, nesterov=nesterov, weight_decay=decay
    )


def sparse_run(spec: str, n: int, make: Callable[[nn.Module], torch.optim.SGD], steps: int = 16) -> Any:
    """x by step and node of training Quadratic with another optimizer than `simulate`'s."""

    def node() -> list[Tensor]:
        torch.manual_seed(0)
        model = Quadratic()
        optimizer = make(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        xs = [model.flat(), *loop(session, model, optimizer, range(steps))]
        session.finish()
        return xs

    X = np.stack([torch.stack(x).numpy() for x in gossip.launch(node, n)], axis=1)
    return type("Run", (), {"X": X})


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("options", "momentum", "nesterov", "decay"),
    [
        ({}, 0.9, False, 1e-2),
        ({}, 0.9, True, 0.0),
        ({"masking": False}, 0.9, False, 0.0),
        ({"masking": False}, 0.8, True, 1e-2),
        ({"clip": 0.7}, 0.9, False, 1e-2),
        ({"clip": 0.5, "clip_scope": "tensor"}, 0.9, False, 0.0),
        ({}, 0.0, False, 1e-2),
        ({"dense_1d": False}, 0.9, False, 0.0),
        ({"warmup_steps": 8}, 0.9, False, 0.0),
    ],
    ids=str,
)
def test_dgc(options: dict[str, Any], momentum: float, nesterov: bool, decay: float, n: int) -> None:
    method = DGC(**{"ratio": 0.1, "threshold": "exact", "warmup_steps": 0, **options})
    run = sparse_run(str(method), n, groups(momentum, nesterov, decay))
    X = first(run)
    simulated = oracle.dgc(
        n,
        D,
        lambda: X,
        (lambda t: 0.25 if t <= 8 else 0.1) if "warmup_steps" in options else (lambda t: 0.1),
        [WEIGHT] if method.dense_1d else [DENSE, WEIGHT],
        [DENSE, WEIGHT],
        momentum,
        nesterov,
        decay,
        method.masking,
        method.clip,
        method.clip_scope,
    )
    check(run, simulated, X, momentum=0.0, decay=0.0)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "spec",
    [
        "gradient-dropping:ratio=0.1,threshold=exact",
        "dgc:momentum_correction=false,warmup_steps=0,ratio=0.1,threshold=exact",
    ],
)
def test_gradient_dropping(spec: str, n: int) -> None:
    run = simulate(spec, n, steps=16)
    X = first(run)
    check(run, oracle.dgc(n, D, lambda: X, lambda t: 0.1, [WEIGHT], [DENSE, WEIGHT]), X)


@pytest.fixture(scope="module")
def powersgd_hook() -> Any:
    """torch's module, on one gloo rank.

    The rank stays to the end of the process: a thread of gloo's may still hold the process group when it is
    destroyed, destroy it in our place, and abort the process because it cannot join itself.
    """
    hooks = pytest.importorskip("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return hooks


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_powersgd_is_torchs_hook_on_the_mean_gradient(powersgd_hook: Any, rank: int, n: int) -> None:
    """The hook itself: PowerSGD is linear, so n nodes equal one with the mean gradient."""
    shape = (12, 10)

    def gradient(i: int, k: int) -> Tensor:
        low = torch.randn(12, 2, generator=torch.Generator().manual_seed(i)) @ torch.randn(2, 10)
        return low + 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(100 * k + i))

    def node() -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(10, 12)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = gossip.join(model, optimizer, algorithm=f"powersgd:rank={rank}")
        q = session.algorithm_state()[0]["q"].clone()
        applied = []
        for k in range(6):
            optimizer.zero_grad()
            torch.manual_seed(k)
            g = gradient(session.rank, k)
            (model.weight * g).sum().add(model.bias.sum() * (session.rank + 1)).backward()
            assert model.weight.grad is not None and model.bias.grad is not None
            applied.append(torch.cat([model.bias.grad, model.weight.grad.reshape(-1)]).clone())
            optimizer.step()
        session.finish()
        return applied, q

    results = gossip.launch(node, n)
    for applied, _ in results:
        assert all(torch.equal(a, b) for a, b in zip(applied, results[0][0], strict=True))

    class Bucket:
        """What the hook needs of a DDP bucket."""

        def __init__(self, flat: Tensor) -> None:
            self.flat = flat

        def index(self) -> int:
            return 0

        def buffer(self) -> Tensor:
            return self.flat

        def gradients(self) -> list[Tensor]:
            return [self.flat[:12], self.flat[12:].view(shape)]

        def is_last(self) -> bool:
            return True

    state = powersgd_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
    )
    state.iter = 2
    state.p_memory_dict[0], state.q_memory_dict[0] = torch.empty(12 * rank), results[0][1].clone()
    for k in range(6):
        torch.manual_seed(k)
        grads = []
        for i in range(n):
            torch.manual_seed(k)
            grads.append(torch.cat([torch.full((12,), i + 1.0), gradient(i, k).reshape(-1)]))
        expected = powersgd_hook.powerSGD_hook(state, Bucket(torch.stack(grads).mean(0))).wait()
        torch.testing.assert_close(results[0][0][k], expected, rtol=1e-4, atol=1e-4)


def transposed() -> nn.Module:
    model = nn.Linear(10, 12, bias=False)
    model.weight = nn.Parameter(torch.randn(10, 12).t())
    return model


def channels_last() -> nn.Module:
    model = nn.Conv2d(8, 12, 3, bias=False)
    model.weight.data = model.weight.data.contiguous(memory_format=torch.channels_last)
    return model


@pytest.mark.parametrize("bucket_mb", [None, 1e-5])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(10, 12, bias=False),
        transposed,
        lambda: nn.Conv2d(8, 12, 3, bias=False),
        channels_last,
        lambda: nn.Sequential(nn.Linear(10, 12, bias=False), nn.Linear(12, 9), nn.Conv2d(3, 9, 3)),
    ],
    ids=["linear", "transposed", "conv", "channels last", "several"],
)
def test_powersgd_keeps_a_gradient_of_its_rank(
    make: Callable[[], nn.Module], bucket_mb: float | None
) -> None:
    """Whatever the order of the dimensions in memory, rows and columns are those of the tensor."""

    def node() -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = gossip.join(model, optimizer, algorithm="powersgd:rank=1", bucket_mb=bucket_mb)
        wanted = {p: torch.ones_like(p) for p in model.parameters()}
        for p in (p for p in wanted if p.dim() > 1):
            ramp = [torch.randn(size) for size in (len(p), p[0].numel())]
            wanted[p] = torch.outer(*ramp).view(p.shape)
        for _ in range(2):
            optimizer.zero_grad()
            torch.stack([(p * g).sum() for p, g in wanted.items()]).sum().backward()
            optimizer.step()
        session.finish()
        return [(p.grad, g) for p, g in wanted.items() if p.grad is not None]

    for applied, g in gossip.launch(node, 2)[0]:
        torch.testing.assert_close(applied, g, rtol=1e-4, atol=1e-5)


# -- relations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_dgc_that_sends_everything_is_momentum_sgd(n: int, nesterov: bool) -> None:
    make = groups(0.9, nesterov, 1e-2)
    everything = sparse_run("dgc:ratio=1,masking=false,warmup_steps=0", n, make)
    plain = sparse_run("allreduce", n, make)
    if n == 1 and not nesterov:  # torch fuses Nesterov's product and sum
        np.testing.assert_array_equal(everything.X, plain.X)
    for x, expected in zip(everything.X, plain.X, strict=True):
        assert_close(x, expected, 3e-6)


@pytest.mark.parametrize("n", SIZES)
def test_dgc_without_momentum_is_plain_error_feedback(n: int) -> None:
    make = groups(0.0, False, 0.0)
    dgc = sparse_run("dgc:ratio=0.1,warmup_steps=0,threshold=exact", n, make)
    dropping = sparse_run("gradient-dropping:ratio=0.1,threshold=exact", n, make)
    np.testing.assert_array_equal(dgc.X, dropping.X)

    def feedback() -> Tensor:
        torch.manual_seed(0)
        model = Quadratic()
        optimizer = make(model)
        session = gossip.join(
            model,
            optimizer,
            algorithm="signsgd:gather=all",
            compressor="layer-topk:ratio=0.1,threshold=exact",
        )
        return loop(session, model, optimizer, range(16))[-1]

    all_sparse = sparse_run("dgc:ratio=0.1,warmup_steps=0,threshold=exact,dense_1d=false", n, make)
    assert_close(gossip.launch(feedback, n)[0].numpy(), all_sparse.X[-1, 0], 1e-6)


def test_warm_up_is_the_papers() -> None:
    method = DGC(ratio=0.001, warmup_steps=400)
    sparsity = [100 * (1 - method.ratio_at(t)) for t in (1, 100, 101, 200, 201, 300, 301, 400, 401, 10_000)]
    assert sparsity == pytest.approx(
        [75, 75, 93.75, 93.75, 98.4375, 98.4375, 99.609375, 99.609375, 99.9, 99.9]
    )
    assert [DGC(ratio=0.01, warmup_steps=6).ratio_at(t) for t in (2, 3, 5, 7)] == [
        1 / 4,
        1 / 16,
        1 / 64,
        0.01,
    ]
    assert DGC(ratio=0.5, warmup_steps=9).ratio_at(1) == 0.5
    assert DGC(warmup_steps=0).ratio_at(1) == 0.001
    for t in range(1, 12):  # fewer steps than stages: still never below the target, never rising
        assert 0.001 <= DGC(warmup_steps=3).ratio_at(t + 1) <= DGC(warmup_steps=3).ratio_at(t)


def test_masking_and_warm_up_are_on_by_default() -> None:
    method = DGC()
    assert method.masking and method.momentum_correction and method.warmup_steps > 0


# -- sent + residual = sum of inputs ---------------------------------------------------------------------


def integer_gradients(rank: int, k: int, d: int, largest: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + k)
    return torch.randint(-largest, largest + 1, (d,), generator=generator).float()


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("spec", "residual", "largest"),
    [
        ("dgc:ratio=0.05,warmup_steps=4", "v", 9),
        ("dgc:ratio=0.05,warmup_steps=0,values=fp16", "v", 5001),
        ("dgc:ratio=0.05,warmup_steps=0,indices=uint32,threshold=exact", "v", 9),
        ("gradient-dropping:ratio=0.05", "v", 9),
    ],
)
def test_nothing_is_lost_bitwise(spec: str, residual: str, largest: int, n: int) -> None:
    """With whole numbers as gradients all sums are exact, so the law holds to the last bit."""
    d, steps = 600, 20

    def node() -> tuple[Tensor, Tensor, Tensor]:
        model = nn.Linear(200, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        session = gossip.join(model, optimizer, algorithm=spec)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        total = torch.zeros(d)
        for k in range(steps):
            g = integer_gradients(session.rank, k, d, largest)
            total += g
            optimizer.zero_grad()
            (model.weight.view(-1) * g).sum().add(model.bias.sum()).backward()
            optimizer.step()
        state = session.algorithm_state()[0]
        session.finish()
        return -model.weight.detach().view(-1), state[residual][3:], total

    results = gossip.launch(node, n)
    inputs = sum(total for _, _, total in results)
    residuals = sum(r for _, r, _ in results)
    sent = n * results[0][0]
    assert bool((residuals != 0).any()) and bool((sent != 0).any())
    assert torch.equal(sent + residuals, inputs)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_no_velocity_is_lost_bitwise(n: int, nesterov: bool) -> None:
    """The same with momentum 0.5 over few steps: what goes in are the velocities, exact in binary."""
    d, steps, m = 600, 8, 0.5

    def node() -> tuple[Tensor, Tensor, Tensor]:
        model = nn.Linear(200, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=m, nesterov=nesterov)
        session = gossip.join(model, optimizer, algorithm="dgc:ratio=0.05,warmup_steps=4,masking=false")
        with torch.no_grad():
            model.weight.zero_()
        velocity, total = torch.zeros(d), torch.zeros(d)
        for k in range(steps):
            g = integer_gradients(session.rank, k, d)
            velocity = m * velocity + g
            total += g + m * velocity if nesterov else velocity
            optimizer.zero_grad()
            (model.weight.view(-1) * g).sum().backward()
            optimizer.step()
        state = session.algorithm_state()[0]
        session.finish()
        return -model.weight.detach().view(-1), state["v"], total

    results = gossip.launch(node, n)
    residuals, inputs = (sum(each) for each in list(zip(*results, strict=True))[1:])
    assert torch.equal(n * results[0][0] + residuals, inputs)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("gather", ["all", "scatter"])
@pytest.mark.parametrize(
    "codec", ["sign", "onebit", "qsgd:bits=2", "randk:ratio=0.25", "per-tensor:topk:0.1"]
)
def test_error_feedback_loses_nothing(codec: str, gather: str, n: int) -> None:
    """To float32's rounding: n Σ applied + Σ_i e_i = Σ of all gradients."""
    steps = 20

    def node() -> tuple[Tensor, Tensor, Tensor]:
        model, total = Quadratic(), torch.zeros(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        session = gossip.join(model, optimizer, algorithm=f"signsgd:gather={gather}", compressor=codec)
        x0 = model.flat()
        for k in range(steps):
            g = integer_gradients(session.rank, k, D)
            total += g
            optimizer.zero_grad()
            torch.cat([model.v, model.w.reshape(-1)]).dot(g).backward()
            optimizer.step()
        state = session.algorithm_state()[0]
        session.finish()
        return x0 - model.flat(), state["e"], total

    results = gossip.launch(node, n)
    sent = n * results[0][0].double()
    residuals = torch.stack([e for _, e, _ in results]).double().sum(0)
    inputs = torch.stack([total for _, _, total in results]).double().sum(0)
    assert_close((sent + residuals).numpy(), inputs.numpy(), 2e-5, scale=float(sent.abs().max()))


def test_powersgd_keeps_what_it_cannot_send() -> None:
    """M = G + E in every step: the error is what the low rank left out."""

    def watch(session: Session, model: Quadratic) -> Tensor:
        return session.algorithm_state()[0]["e"].clone()

    run = simulate("powersgd:rank=1", 3, steps=10, watch=watch)
    for rank in range(3):
        assert all(not e[DENSE].any() for e in run.watched[rank])
    E = torch.stack([torch.stack(e) for e in run.watched]).double().mean(0).numpy()  # of the mean gradient
    grad, X = gradients(3), run.X[:, 0].astype(np.float64)
    velocity = np.zeros(D)
    for k in range(10):
        before = E[k - 1] if k else np.zeros(D)
        new = (X[k] - X[k + 1]) / LR
        applied = new - MOMENTUM * velocity - DECAY * X[k]
        velocity = new
        M = grad(X[k][None].repeat(3, 0), k).mean(0) + before
        assert_close(applied + E[k], M, 1e-4)


# -- how the engine runs a method changes nothing ---------------------------------------------------------


def run(n: int, **options: Any) -> list[Tensor]:
    return [x for x, _ in gossip.launch(lambda: train(**options), n)]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("spec", (*SPECS, *CHANGED))
@pytest.mark.parametrize("other", [{"overlap": False}, {"progress": "thread"}, {}], ids=str)
def test_overlap_changes_nothing_and_runs_repeat(spec: str, other: dict[str, Any]) -> None:
    base = run(3, algorithm=spec)
    assert all(torch.equal(x, base[0]) for x in base)
    assert equal(base, run(3, algorithm=spec, **other))


@pytest.mark.parametrize(
    "spec",
    [
        "dgc:ratio=0.1,warmup_steps=3,threshold=exact",
        "dgc:ratio=0.1,threshold=exact,clip=0.1,clip_scope=tensor",
        "gradient-dropping:ratio=0.1,threshold=exact",
        "powersgd",
    ],
)
def test_layer_wise_methods_do_not_see_buckets(spec: str) -> None:
    for one, many in zip(run(3, algorithm=spec), run(3, algorithm=spec, bucket_mb=1e-4), strict=True):
        torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [*QUANTIZED, *SPARSE, "powersgd"])
def test_many_buckets_overlap(spec: str) -> None:
    base = run(3, algorithm=spec, bucket_mb=1e-4)
    assert equal(base, run(3, algorithm=spec, bucket_mb=1e-4, overlap=False))
    assert all(torch.equal(x, base[0]) for x in base)


@pytest.mark.parametrize("spec", SPECS)
def test_accumulated_parts_equal_one_batch(spec: str) -> None:
    def accumulate(parts: int) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).double().float()
        optimizer = sgd(model)
        exact = spec if ":" not in spec or "ratio" not in spec else f"{spec},threshold=exact"
        node = gossip.join(model, optimizer, algorithm=exact, compressor="fp16" if "qsgd" in spec else None)
        (x, y), *_ = batches(node.rank, 1)
        backward_in_parts(node, model, x, y, parts)
        optimizer.step()
        node.finish()
        return flat(model)

    if spec.startswith("signsgd"):
        pytest.skip("a sign may flip with the rounding of a sum")
    for whole, summed in zip(gossip.launch(accumulate, 3, 1), gossip.launch(accumulate, 3, 3), strict=True):
        torch.testing.assert_close(whole, summed, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_final_when_backward_returns(spec: str) -> None:
    """So that what the user does with them, such as clipping, is the same on all nodes."""

    def clip(node: Session, model: nn.Module) -> None:
        grads = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        assert all(torch.equal(g, grads) for g in node.world.allgather(grads.clone()))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    clipped = run(3, algorithm=spec, before_step=clip)
    assert all(torch.equal(x, clipped[0]) for x in clipped)
    assert not equal(clipped, run(3, algorithm=spec))


def test_what_dgc_has_accumulated_is_not_to_be_clipped() -> None:
    def node(spec: str, edits: bool) -> None:
        def clip(session: Session, model: nn.Module) -> None:
            if edits:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

        train(3, algorithm=spec, before_step=clip)

    for spec in ("allreduce", "gradient-dropping", "dgc:momentum_correction=false", "dgc:clip=1"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gossip.launch(node, 2, spec, spec != "dgc:clip=1")
    with pytest.warns(UserWarning, match="between backward.*dgc:clip=NORM") as told:
        gossip.launch(node, 2, "dgc", True)
    assert len([w for w in told if "dgc:clip=NORM" in str(w.message)]) == 1


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("overlap", [True, False])
def test_backward_with_create_graph_is_exchanged_without_one(spec: str, overlap: bool) -> None:
    def node(create_graph: bool) -> Tensor:
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        optimizer = sgd(model)
        gossip.join(model, optimizer, algorithm=spec, overlap=overlap)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).square().sum().backward(create_graph=create_graph)
            assert not any(p.grad is None or p.grad.requires_grad for p in model.parameters())
            optimizer.step()
        return flat(model)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
        graph, plain = (gossip.launch(node, 2, each) for each in (True, False))
    assert equal(graph, plain)


def test_dgc_does_without_a_grad_scaler() -> None:
    def node(scale: float) -> None:
        model = nn.Linear(6, 4)
        optimizer = sgd(model)
        gossip.join(model, optimizer, algorithm="dgc")
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 6)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    with pytest.warns(UserWarning, match="without a GradScaler") as told:
        gossip.launch(node, 2, 1024.0)
    assert len([w for w in told if "GradScaler" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gossip.launch(node, 2, 1.0)  # changes nothing


def test_options_of_dgc_without_effect_are_told() -> None:
    with pytest.raises(ValueError, match="no velocity to mask"):
        DGC(masking=False, momentum_correction=False)
    with pytest.warns(UserWarning, match="clip_scope=tensor does nothing without clip"):
        run(2, algorithm="dgc:clip_scope=tensor")


def test_dgc_starts_with_a_velocity_of_zero_and_leaves_none_behind() -> None:
    """The optimizer's own would come back, out of date, when `finish` gives the momentum back."""

    def node() -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        session = gossip.join(model, optimizer, algorithm="dgc")
        assert "velocity that it had gathered is dropped" in session.notes[0]
        session.finish()
        assert optimizer.param_groups[0]["momentum"] == 0.9
        assert all("momentum_buffer" not in optimizer.state[p] for p in model.parameters())

    gossip.launch(node, 2)


class Fails(torch.autograd.Function):
    """The identity, whose backward fails if it is told to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fails: bool) -> Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        if ctx.fails:
            raise MemoryError("halfway")
        return grad[0], None


class Fault(nn.Module):
    """A layer whose backward fails `now`."""

    now = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Fails.apply(x, self.now)
        return out


@pytest.mark.parametrize(("overlap", "bucket_mb"), [(True, 1e-5), (True, None), (False, 1e-5)])
def test_a_backward_that_failed_halfway(overlap: bool, bucket_mb: float | None) -> None:
    """If a part of it has been sent, that is an error; else the next one begins anew."""

    def node(fail: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), fault := Fault(), nn.Linear(3, 3))
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="allreduce", bucket_mb=bucket_mb, overlap=overlap)
        for step in range(3):
            for fault.now in (True, False) if fail and step == 1 else (False,):
                optimizer.zero_grad()
                try:
                    model(torch.full((2, 3), 1.0 + session.rank)).sum().backward()
                except MemoryError:
                    continue
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        session.finish()
        return flat(model)

    if overlap and bucket_mb is not None:
        with pytest.raises(UsageError, match="failed halfway"):
            gossip.launch(node, 2, True)
    else:
        failed, whole = gossip.launch(node, 2, True), gossip.launch(node, 2, False)
        assert equal(failed, whole) and torch.equal(*failed)


class Branches(nn.Module):
    """Rank 1 does not use `b`; nobody uses `c`; there are tensors of one element and of none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.one = nn.Linear(1, 1)
        self.scale, self.empty = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.empty(0, 5))
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x.flatten(1)))
        if gossip.world().rank != 1:
            h = h + self.b(h)
        return self.out(h) * self.scale + self.one(h[:, :1])


@pytest.mark.parametrize(("bucket_mb", "overlap"), [(1e-5, True), (None, False)])
@pytest.mark.parametrize("spec", (*SPECS, "dgc:dense_1d=false"))
def test_unused_and_tiny_tensors(spec: str, bucket_mb: float | None, overlap: bool) -> None:
    def node() -> Tensor:
        return train(4, algorithm=spec, model=Branches(), overlap=overlap, bucket_mb=bucket_mb)[0]

    results = gossip.launch(node, 3)
    assert all(torch.equal(x, results[0]) and x.isfinite().all() for x in results)


class Gated(nn.Module):
    """Rank 1 leaves `b` out, or multiplies it by 0: the same function."""

    def __init__(self, leaves_out: bool) -> None:
        super().__init__()
        self.leaves_out = leaves_out
        self.a, self.b, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, gate = torch.tanh(self.a(x.flatten(1))), float(gossip.world().rank != 1)
        return self.out(h if self.leaves_out and not gate else h + gate * self.b(h))


@pytest.mark.parametrize("spec", ["allreduce", *SPECS])
def test_an_unused_parameter_counts_as_a_zero_gradient(spec: str) -> None:
    def node(leaves_out: bool) -> Tensor:
        torch.manual_seed(0)
        return train(4, algorithm=spec, model=Gated(leaves_out))[0]

    assert equal(gossip.launch(node, 3, True), gossip.launch(node, 3, False))


@pytest.mark.parametrize("spec", [s for s in SPECS if not s.startswith("dgc")])
def test_any_optimizer(spec: str) -> None:
    results = run(2, algorithm=spec, make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2))
    assert torch.equal(results[0], results[1]) and results[0].isfinite().all()


@pytest.mark.parametrize("spec", (*SPECS, *CHANGED))
def test_resuming_changes_nothing(spec: str) -> None:
    codec = make_algorithm(spec).default_compressor if make_algorithm(spec).uses_compressor else "identity"
    unbroken = simulate(spec, 3, codec, steps=10).last

    def broken(before: int) -> list[Tensor]:
        def first() -> bytes:
            model, optimizer = start()
            session = gossip.join(model, optimizer, algorithm=spec)
            loop(session, model, optimizer, range(before))
            file = io.BytesIO()
            torch.save([session.state_dict(), model.state_dict(), optimizer.state_dict()], file)
            session.finish()
            return file.getvalue()

        files = gossip.launch(first, 3)

        def second() -> Tensor:
            model, optimizer = start()
            session = gossip.join(model, optimizer, algorithm=spec)
            saved = torch.load(io.BytesIO(files[session.rank]), weights_only=True)
            model.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[2])
            session.load_state_dict(saved[0])
            loop(session, model, optimizer, range(before, 10))
            session.finish()
            return model.flat()

        return gossip.launch(second, 3)

    np.testing.assert_array_equal(torch.stack(broken(5)).numpy(), unbroken)


# -- edges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", ["runs", "uint32"])
def test_runs_beyond_16_bits(indices: str) -> None:
    """Spikes at both ends of a tensor and where the escape begins: what arrives is what was sent."""
    d = 300_000
    places = torch.tensor([0, 65_535, 65_536, 131_072, 131_073 + 65_535, d - 1])

    def node() -> tuple[Tensor, int]:
        model = nn.Linear(d, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        spec = f"dgc:ratio={len(places) / d},warmup_steps=0,threshold=exact,indices={indices}"
        session = gossip.join(model, optimizer, algorithm=spec)
        g = torch.full((d,), 1e-3)
        g[places] = torch.arange(1.0, len(places) + 1) * (session.rank + 1)
        model.weight.view(-1).dot(g).backward()
        assert model.weight.grad is not None
        optimizer.step()
        sent = session.stats.take()["bytes_sent"]
        session.finish()
        return model.weight.grad.view(-1), sent

    escapes = 3  # 65,535 zeros before the fourth; 65,535 before the fifth; 103,391 before the last
    assert escapes == sum(int(run) // 65_535 for run in places.diff() - 1) + int(places[0]) // 65_535
    for applied, sent in gossip.launch(node, 2):
        expected = torch.zeros(d)
        expected[places] = torch.arange(1.0, len(places) + 1) * 1.5
        assert torch.equal(applied, expected)
        words = 2 * (len(places) + escapes) if indices == "runs" else 4 * len(places)
        assert sent == 4 + words + 4 * len(places)


@pytest.mark.parametrize("spec", (*SPECS, "signsgd:gather=all", "powersgd:rank=4"))
def test_steps_with_zero_gradients(spec: str) -> None:
    """They change nothing, and training goes on afterwards."""

    def node() -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = gossip.join(model, optimizer, algorithm=spec)
        before = flat(model)
        for factor in (0.0, 0.0, 1.0, 1.0, 1.0):
            x, y = batches(session.rank, 1)[0]
            optimizer.zero_grad()
            (factor * nn.functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
            if factor == 0:
                still = flat(model)
        session.finish()
        return before, still, flat(model)

    for before, still, after in gossip.launch(node, 3):
        assert torch.equal(before, still)
        moved = after != before
        assert bool(moved.any()) and bool(after.isfinite().all())
        if "powersgd" in spec:
            assert float(moved.float().mean()) > 0.9  # Q of an all-zero gradient is not the end


def test_what_compression_saves_is_counted_from_where_a_run_goes_on() -> None:
    def node() -> None:
        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm="qsgd")
        loop(session, model, optimizer, range(3))
        state = session.state_dict()
        session.finish()

        model, optimizer = start()
        session = gossip.join(model, optimizer, algorithm="qsgd")
        session.load_state_dict({**state, "lanes": [{**lane, "t": 1000} for lane in state["lanes"]]})
        loop(session, model, optimizer, range(2))
        session.world.fastest = 1e30
        saved = 2 * session.allreduce_bytes - session.stats.bytes_sent
        assert f"the {max(0, saved) / 1e6:.3g} MB saved" in str(session._compression_loss())
        session.world.fastest = 0.0
        session.finish()

    gossip.launch(node, 3)


@pytest.mark.parametrize("where", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("spec", (*SPECS, "dgc:clip=0.5", "dgc:clip=0.5,clip_scope=tensor"))
def test_nan_gradients_name_rank_round_and_bucket(spec: str, value: float, where: str) -> None:
    def node() -> None:
        model = nn.Linear(6, 4)
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        for step in range(1, 6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 6)).sum()
            if step == 4 and session.rank == 1:
                loss = loss + getattr(model, where).sum() * value
            loss.backward()
            optimizer.step()

    with pytest.raises(DivergedError, match="rank 1, round 4, bucket 0") as caught:
        gossip.launch(node, 3)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("overlap", [True, False])
def test_a_mean_gradient_may_be_infinite(overlap: bool) -> None:
    """A GradScaler sees the infinity on every rank, and leaves the step out."""

    def node() -> Tensor:
        model = nn.Linear(6, 4)
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="allreduce", overlap=overlap)
        for step in range(1, 6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 6)).sum()
            (loss * float("inf") if step == 4 and session.rank == 1 else loss).backward()
            finite = torch.isfinite(model.weight.grad).all()  # type: ignore[arg-type]
            assert finite == (step != 4)
            optimizer.step() if finite else session.skip()
        session.finish()
        return flat(model)

    assert all(torch.isfinite(x).all() for x in gossip.launch(node, 2))


# -- traffic -----------------------------------------------------------------------------------------------


def mean_bytes(values: int, n: int) -> int:
    return 2 * (n - 1) * 4 * values // n


@pytest.mark.parametrize("n", SIZES)
def test_bytes_follow_from_the_shapes(n: int) -> None:
    shapes = [tuple(p.shape) for p in Net().parameters()]
    sizes = [int(np.prod(shape)) for shape in shapes]
    d, d1 = sum(sizes), sum(size for shape, size in zip(shapes, sizes, strict=True) if len(shape) == 1)
    matrices = [
        (shape[0], size // shape[0]) for shape, size in zip(shapes, sizes, strict=True) if len(shape) > 1
    ]
    k = sum(max(1, round(0.1 * rows * columns)) for rows, columns in matrices)
    low = [(rows, columns) for rows, columns in matrices if rows + columns < rows * columns]
    high = sum(rows * columns for rows, columns in matrices if (rows, columns) not in low)
    rows, columns = sum(r for r, _ in low), sum(c for _, c in low)

    q8 = make_codec("qsgd:bits=8").max_bytes
    owned = [d * (j + 1) // n - d * j // n for j in range(n)]
    expected = {
        "qsgd:gather=all": lambda i: (n - 1) * (d + 4 * -(-d // 512)),
        "signsgd:gather=all": lambda i: (n - 1) * (-(-d // 8) + 4 * -(-d // 512)),
        "qsgd:gather=scatter": lambda i: sum(map(q8, owned)) + (n - 2) * q8(owned[i]),
        "dgc:ratio=0.1,warmup_steps=0,threshold=exact": lambda i: (n - 1) * (4 + 6 * k) + mean_bytes(d1, n),
        "dgc:ratio=0.1,warmup_steps=0,threshold=exact,values=fp16,indices=uint32": lambda i: (
            (n - 1) * (4 + 6 * k) + mean_bytes(d1, n)
        ),
        "gradient-dropping:ratio=0.1,threshold=exact": lambda i: (n - 1) * (4 + 6 * k) + mean_bytes(d1, n),
        "powersgd:rank=1": lambda i: mean_bytes(rows + d1 + high, n) + mean_bytes(columns, n),
    }
    for spec, law in expected.items():
        if n == 1 and "scatter" in spec:
            continue
        for i, (_, node) in enumerate(gossip.launch(lambda spec=spec: train(2, algorithm=spec), n)):
            assert node.stats.take()["bytes_sent"] == 2 * law(i), spec


def test_sampled_thresholds_send_at_most_k_and_nearly_k() -> None:
    d, n, steps = 64 * 1024, 2, 4

    def node() -> int:
        model = nn.Linear(1024, 64, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = gossip.join(model, optimizer, algorithm="dgc:ratio=0.01,warmup_steps=0")
        for k in range(steps):
            g = torch.randn(d, generator=torch.Generator().manual_seed(10 * k + session.rank))
            optimizer.zero_grad()
            model.weight.view(-1).dot(g).backward()
            optimizer.step()
        return int(session.stats.take()["bytes_sent"])

    most = steps * (4 + 6 * round(0.01 * d))
    assert all(0.9 * most < sent <= most for sent in gossip.launch(node, n))


SEGMENTS = (Segment("a", 0, (3,)), Segment("b", 3, (100, 100)), Segment("c", 10_003, (7, 1)))


@pytest.mark.parametrize("n", (*SIZES, 64))
def test_parts_cover_the_bucket_evenly(n: int) -> None:
    cut = parts(SEGMENTS, n, make_codec("per-tensor:topk:0.1"))
    assert [x for part in cut for x in range(10_010)[part.at]] == list(range(10_010))
    assert {part.size for part in cut} <= {10_010 // n, 10_010 // n + 1}
    for part in cut:
        assert sum(part.codec.sizes) == part.size  # type: ignore[attr-defined]


def test_auto_scatters_where_it_saves_bytes() -> None:
    big = (Segment("w", 0, (1000, 272)),)  # ResNet-20 in 8 bit: 274 kB a message
    codec = make_codec("qsgd:bits=8")
    assert [scatters("auto", big, n, codec) for n in (1, 2, 3, 4, 8)] == [False, False, True, True, True]
    for n in (3, 4, 8):
        saved = bytes_sent(False, big, n, codec) - bytes_sent(True, big, n, codec)
        assert scatters("auto", big, n, codec) == (saved > ROUND_TRIP)
    assert not any(scatters("auto", SEGMENTS, n, codec) for n in (1, 2, 3, 4, 8))
    assert [scatters("scatter", big, n, codec) for n in (1, 2)] == [False, True]


# -- what the method takes over from the optimizer ----------------------------------------------------------


def test_dgc_takes_momentum_over_and_gives_it_back(caplog: pytest.LogCaptureFixture) -> None:
    def node() -> tuple[str, ...]:
        model = nn.Linear(4, 2)
        groups: list[dict[str, Any]] = [
            {"params": [model.weight]},
            {"params": [model.bias], "weight_decay": 0.0, "nesterov": False},
        ]
        optimizer = torch.optim.SGD(
            groups,
            lr=0.1,
            momentum=0.9,
            weight_decay=1e-3,
            nesterov=True,
        )
        before = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        session = gossip.join(model, optimizer, algorithm="dgc")
        for group in optimizer.param_groups:
            assert group["momentum"] == group["weight_decay"] == 0 and not group["nesterov"]
            assert group["lr"] == 0.1
        session.finish()
        assert [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups] == before
        return session.notes

    with caplog.at_level(logging.INFO, logger="gossip"):
        notes = gossip.launch(node, 2)
    (taken, warm_up) = notes[0]
    assert "momentum=0.9, nesterov=true, weight_decay=0.001; momentum=0.9, nesterov=false" in taken
    assert "steps 1 to 2000" in warm_up
    assert [record.message for record in caplog.records] == [taken, warm_up]  # once, by one rank


def test_each_group_keeps_its_own_hyper_parameters() -> None:
    """Sending everything equals SGD with the same groups."""

    def make(model: nn.Module) -> torch.optim.SGD:
        w, v = model.get_parameter("w"), model.get_parameter("v")
        return torch.optim.SGD(
            [{"params": [w], "momentum": 0.8}, {"params": [v], "weight_decay": 0.1, "nesterov": True}],
            lr=LR,
            momentum=0.9,
        )

    everything = sparse_run("dgc:ratio=1,masking=false,warmup_steps=0", 2, make)
    assert_close(everything.X, sparse_run("allreduce", 2, make).X, 3e-6)


BAD: dict[str, tuple[Callable[[nn.Module], torch.optim.Optimizer], str]] = {
    "adam": (lambda m: torch.optim.Adam(m.parameters()), "momentum_correction=false"),
    "dampening": (lambda m: torch.optim.SGD(m.parameters(), lr=1, momentum=0.9, dampening=0.1), "dampening"),
    "maximize": (lambda m: torch.optim.SGD(m.parameters(), lr=1, maximize=True), "maximize"),
    "two models": (
        lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.ones(2))], lr=1, momentum=0.9),
        "another model",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_optimizers_that_dgc_cannot_take_over(name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(UsageError, match=text):
        run(2, algorithm="dgc", make_optimizer=make)


def test_other_optimizers_work_without_momentum_correction() -> None:
    spec = "dgc:momentum_correction=false"
    assert equal(*2 * [run(2, algorithm=spec, make_optimizer=lambda m: torch.optim.Adam(m.parameters()))])


def test_momentum_that_comes_back_is_noticed() -> None:
    made: list[torch.optim.Optimizer] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        made.append(sgd(model))
        return made[0]

    def restore(node: Session, model: nn.Module) -> None:
        made[0].param_groups[0]["momentum"] = 0.9

    with pytest.raises(UsageError, match="cycle_momentum=False"):
        run(1, algorithm="dgc", make_optimizer=make, before_step=restore)


def test_ranks_with_different_momentum_are_found() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if gossip.world().rank else 0.8)

    with pytest.raises(UsageError, match="disagree on optimizer"):
        run(2, algorithm="dgc", make_optimizer=make)


def test_global_clipping_takes_one_bucket() -> None:
    with pytest.raises(UsageError, match="bucket_mb"):
        run(2, algorithm="dgc:clip=1", bucket_mb=1.0)
    run(2, algorithm="dgc:clip=1,clip_scope=tensor", bucket_mb=1e-4)


# -- options and warnings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "dgc:ratio=0",
        "dgc:ratio=1.5",
        "dgc:warmup_steps=-1",
        "dgc:clip=0",
        "dgc:values=fp8",
        "gradient-dropping:ratio=0",
        "powersgd:rank=0",
        "qsgd:gather=some",
    ],
)
def test_options_out_of_range_are_usage_errors(spec: str) -> None:
    with pytest.raises(UsageError, match=spec.split(":")[1].split("=")[0]):
        make_algorithm(spec)


@pytest.mark.parametrize("spec", (*SPECS, *CHANGED))
def test_specs_round_trip(spec: str) -> None:
    assert make_algorithm(str(make_algorithm(spec))) == make_algorithm(spec)


@pytest.mark.parametrize(
    ("spec", "codec", "text"),
    [
        ("qsgd", "sign", "ef=true"),
        ("qsgd", "topk:0.01", "ef=true"),
        ("qsgd", "qsgd:bits=1", "noise"),
        ("qsgd", "qsgd:bits=8", None),
        ("qsgd", "qsgd:bits=4", None),
        ("qsgd", "fp16", None),
        ("qsgd:ef=true", "qsgd:bits=1", None),
        ("qsgd:ef=true", "sign", None),
        ("signsgd", "sign", None),
    ],
)
def test_warnings(spec: str, codec: str, text: str | None) -> None:
    warned = list(make_algorithm(spec).check(make_topology("ring", 4), make_codec(codec)))
    assert len(warned) == (text is not None)
    assert text is None or text in warned[0]


@pytest.mark.parametrize(
    ("spec", "codec"), [("qsgd", "qsgd:bits=8"), ("signsgd", "sign"), ("dpsgd", "identity")]
)
def test_without_a_compressor_the_method_takes_its_own(spec: str, codec: str) -> None:
    (session,) = gossip.launch(lambda: train(1, algorithm=spec)[1], 1)
    assert session.compressor == make_codec(codec)
    (session,) = gossip.launch(lambda: train(1, algorithm=spec, compressor="natural")[1], 1)
    assert session.compressor == make_codec("natural")


def test_the_schedule_and_graph_play_no_part() -> None:
    assert equal(run(4, algorithm="qsgd", topology="one-peer"), run(4, algorithm="qsgd", topology="star"))


def combinations() -> Iterator[tuple[str, str]]:
    yield from itertools.product(("qsgd:gather=scatter", "qsgd:ef=true,gather=scatter"), ALL_CODECS)


ALL_CODECS = (
    "fp16",
    "grid",
    "layer-topk",
    "minmax",
    "natural",
    "per-tensor",
    "randk",
    "terngrad",
    "threshold",
)


@pytest.mark.parametrize(("spec", "codec"), list(combinations()))
def test_parts_work_with_every_codec(spec: str, codec: str) -> None:
    results = run(3, algorithm=spec, compressor=codec, steps=3)
    assert all(torch.equal(x, results[0]) and x.isfinite().all() for x in results)


def test_layer_topk_is_dgcs_message() -> None:
    codec = DGC(ratio=0.1, warmup_steps=0).codec_at(1, SEGMENTS)
    assert isinstance(codec, LayerTopK) and codec.sizes == (3, 10_000, 7)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "weight_decay"])
def test_what_comes_back_to_the_optimizer_is_noticed(name: str) -> None:
    made: list[torch.optim.Optimizer] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        made.append(sgd(model))
        return made[0]

    def restore(node: Session, model: nn.Module) -> None:
        made[0].param_groups[0][name] = 0.9

    with pytest.raises(UsageError, match=f"the optimizer's {name} was set"):
        gossip.launch(lambda: train(2, algorithm="dgc", make_optimizer=make, before_step=restore), 1)


def test_the_note_tells_what_either_way_costs() -> None:
    big, codec = [(Segment("w", 0, (1000, 272)),)], make_codec("qsgd:bits=8")
    ways = [bytes_sent(scatter, big[0], 4, codec) for scatter in (False, True)]
    expected = "gather=scatter: {1} bytes per step and node (all: {0}, scatter: {1})".format(*ways)
    assert exchange.describe("auto", big, 4, codec) == expected


def test_powersgd_starts_anew_after_a_step_without_gradient() -> None:
    """As in the first step, a gradient of its rank is kept whole; a Q of zeros would keep its first row."""

    def node() -> tuple[Tensor | None, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(10, 12, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        session = gossip.join(model, optimizer, algorithm="powersgd:rank=1")
        g = torch.outer(torch.randn(12), torch.randn(10))
        for factor in (0.0, 1.0):
            optimizer.zero_grad()
            (model.weight * g).sum().mul(factor).backward()
            optimizer.step()
        session.finish()
        return model.weight.grad, g

    for applied, g in gossip.launch(node, 2):
        torch.testing.assert_close(applied, g, rtol=1e-4, atol=1e-5)
