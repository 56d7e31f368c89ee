"""P3: its numbers are all-reduce's whatever slices, order and wait; what leaves first; what is refused.

Virtual nodes run one after the other until they must wait, so the first of them finds nothing arrived when it
steps, parks everything, and waits in its next forward, module by module.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossip
from gossip.errors import DivergedError, PeerLostError, UsageError
from gossip.flat import FlatModel
from gossip.forward_order import ForwardOrder
from gossip.session import Session
from gossip.spec import make_algorithm
from gossip.transport.local import LocalTransport
from tests.mpi import p3_laws
from tests.mpirun import mpirun, needs_mpi
from tests.training import Net, backward_in_parts, batches, flat, sgd

SPECS = (
    *("p3:slice=30", "p3:slice=30,order=fifo", "p3:slice=50,in_flight=1"),
    *("p3:slice=layer,order=fifo", "p3"),
)
N = 3
STEPS = 5

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Backwards(nn.Module):
    """Runs in the reverse order of registration."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(8, 3), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


class Twice(nn.Module):
    """Uses one module twice, and one weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.tied, self.out = (nn.Linear(16, m) for m in (16, 16, 16, 3))
        self.tied.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x.flatten(1)))
        return self.out(torch.tanh(self.tied(self.b(torch.tanh(self.b(h))))))


class Attention(nn.Module):
    """The hooks of `nn.MultiheadAttention.out_proj` never fire."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(4, 8), nn.Linear(32, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.view(-1, 4, 4))
        return self.out(self.attention(h, h, h, need_weights=False)[0].flatten(1))


class Direct(nn.Module):
    """Uses parameters of its own, and a child\'s without calling it; one has no values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.empty = nn.Parameter(torch.ones(16)), nn.Parameter(torch.empty(0, 4))
        self.inner, self.out = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x.flatten(1) * self.scale, self.inner.weight, self.inner.bias)
        return self.out(torch.tanh(h))


class Sometimes(nn.Module):
    """A branch is used in every second forward, another by rank 0 only, a third by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(16, 16) for _ in range(4))
        self.out = nn.Linear(16, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = torch.tanh(self.a(x.flatten(1)))
        if self.calls % 2:
            h = h + self.b(h)
        if gossip.world().rank == 0:
            h = h - self.c(h)
        return self.out(h)


class Normed(nn.Module):
    """A hook of its own computes the weight from parameters before the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.weight_norm(nn.Linear(16, 8))
        self.b = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x.flatten(1))))


class Loose(nn.Module):
    """Never called itself: only its children are."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(16, 8), nn.Linear(8, 3)
        self.temperature = nn.Parameter(torch.tensor(1.0))


MODELS: tuple[Callable[[], nn.Module], ...] = (
    Net,
    Backwards,
    Twice,
    Attention,
    Direct,
    Sometimes,
    Normed,
    Loose,
)


def logits(model: nn.Module, x: Tensor) -> Tensor:
    if isinstance(model, Loose):
        return model.head(torch.tanh(model.features(x.flatten(1)))) * model.temperature
    out: Tensor = model(x)
    return out


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    first, *rest = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "weight_decay": 0.1}, {"params": rest, "lr": 0.03}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def adamw(**options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **options)


class Derived(torch.optim.AdamW):
    """Its step calls that of the base class, which has the same hooks."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


OPTIMIZERS = {
    "sgd": sgd,
    "nesterov": nesterov,
    "adam": adam,
    "adamw": adamw(),
    "adamw foreach": adamw(foreach=True),
    "adamw fused": adamw(fused=True),
    "derived": lambda model: Derived(model.parameters(), lr=1e-2),
    "tensor lr": lambda model: torch.optim.SGD(model.parameters(), lr=torch.tensor(0.05), momentum=0.5),
}


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, node: Session, steps: range = range(STEPS)
) -> Iterator[int]:
    """An ordinary loop under a schedule; yields the step after every `step()`."""
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(steps.start):
        scheduler.step()

    def run() -> Iterator[int]:
        for k in steps:
            x, y = batches(node.rank, STEPS)[k]
            optimizer.zero_grad()
            F.cross_entropy(logits(model, x), y).backward()
            optimizer.step()
            scheduler.step()
            yield k

    return run()


def train(
    make_model: Callable[[], nn.Module] = Net,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    look: Callable[[Session, nn.Module], object] | None = None,
    **options: Any,
) -> list[Tensor]:
    """The parameters at the end; with `look`, which is called after each step, also after every step."""
    torch.manual_seed(gossip.world().rank)
    model = make_model()
    optimizer = make_optimizer(model)
    node = gossip.join(model, optimizer, **options)
    xs = []
    for _ in loop(model, optimizer, node):
        if look is not None:
            look(node, model)
            xs.append(flat(model))
    node.finish()
    return [*xs, flat(model)]


def run(n: int = N, **options: Any) -> list[list[Tensor]]:
    return gossip.launch(lambda: train(**options), n)


def assert_same(a: list[list[Tensor]], b: list[list[Tensor]]) -> None:
    for of_rank, other in zip(a, b, strict=True):
        for k, (x, y) in enumerate(zip(of_rank, other, strict=True)):
            assert torch.equal(x, y), f"step {k + 1}: {(x - y).abs().max()}"


def wait(node: Session, model: nn.Module) -> None:
    node.wait()


def parked(node: Session) -> set[str]:
    """The parameters that still lack their last update."""
    lazy = node._engine.lazy  # type: ignore[attr-defined]
    return set() if lazy is None else {node._flat.names[p] for p in lazy.parked}


# -- the numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "n"), [*((spec, N) for spec in SPECS), *((SPECS[0], n) for n in (1, 2, 5))])
def test_after_every_step_the_parameters_are_all_reduces(spec: str, n: int) -> None:
    exact = run(n, algorithm="allreduce", look=wait)
    p3 = run(n, algorithm=spec, look=wait)
    for of_rank, expected in zip(p3, exact, strict=True):
        for x, y in zip(of_rank, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    assert_same(p3, [p3[0]] * n)
    assert_same(p3, run(n, algorithm="p3:slice=layer,order=fifo,in_flight=1", overlap=False, look=wait))


@pytest.mark.parametrize(
    ("make_model", "name"),
    [
        *((Net, name) for name in OPTIMIZERS),
        *((model, name) for model in MODELS if model is not Net for name in ("nesterov", "adamw")),
    ],
)
def test_waiting_module_by_module_changes_no_bit(make_model: Callable[[], nn.Module], name: str) -> None:
    late: list[int] = []
    options: dict[str, Any] = {"make_model": make_model, "make_optimizer": OPTIMIZERS[name]}
    at_once = run(2, algorithm="p3:slice=60", overlap=False, **options)
    in_turn = run(
        2, algorithm="p3:slice=60", look=lambda node, model: late.append(len(parked(node))), **options
    )
    assert_same([of_rank[-1:] for of_rank in in_turn], at_once)
    # Loose waits in step() for `temperature`, and gets the rest meanwhile.
    assert sum(late) > 0 or make_model is Loose, "nothing was late, so nothing was tested"


@pytest.mark.parametrize(
    "spec", ["qsgd", "qsgd:ef=true,gather=scatter", "signsgd", "dgc:ratio=0.1", "gradient-dropping:ratio=0.1"]
)
def test_other_methods_in_order_of_priority(spec: str) -> None:
    late: list[int] = []
    options: dict[str, Any] = {"algorithm": spec, "bucket_mb": 1e-4}
    in_turn = run(order="priority", look=lambda node, model: late.append(len(parked(node))), **options)
    assert_same([of_rank[-1:] for of_rank in in_turn], run(**options))
    assert sum(late) > 0


def test_each_module_gets_its_own_update_and_no_other() -> None:
    def node() -> list[str]:
        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60,in_flight=2")
        old, found = dict[str, Tensor](), list[str]()

        def changed() -> set[str]:
            return {name for name, x in old.items() if not torch.equal(x, model.get_parameter(name))}

        def after_conv(*_: object) -> None:
            assert {name for name in old if name.startswith("conv")} == changed()
            found.extend(old.keys() - changed())

        def after_out(*_: object) -> None:
            assert changed() == old.keys() and not parked(session)

        model.conv.register_forward_hook(after_conv)
        model.out.register_forward_hook(after_out)
        for _ in loop(model, optimizer, session):
            old = {name: model.get_parameter(name).detach().clone() for name in parked(session)}
        session.finish()
        return found

    assert "out.weight" in gossip.launch(node, 2)[0]


# -- what leaves first ------------------------------------------------------------------------------------


def posted(monkeypatch: pytest.MonkeyPatch, spec: str, make_model: Callable[[], nn.Module]) -> list[str]:
    """The layers of rank 1's pushes to rank 0 in the last round, in the order in which they left.

    Rank 0 lets rank 1 go ahead, so that it has made all of them before the first is taken.
    """
    tags: list[int] = []
    post = LocalTransport.post

    def record(self: LocalTransport, payload: Tensor, to: int, tag: int, wake: Any = None) -> Any:
        if self.rank == 1:
            tags.append(tag)
        return post(self, payload, to, tag, wake)

    monkeypatch.setattr(LocalTransport, "post", record)

    def node() -> list[str]:
        torch.manual_seed(0)
        model = make_model()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        first = session._engine.lanes[0].node.tag
        for k in loop(model, optimizer, session):
            if k == STEPS - 2:
                session.wait()
                if session.rank == 1:
                    tags.clear()
                else:
                    session.world.wait(lambda: 1 in session.world.notes.get("ahead", {}), 60)
        session.world.note("ahead", True)
        session.finish()
        lanes = session._engine.lanes
        pushes = [lanes[tag - first] for tag in tags if lanes[tag - first].node.owner == 0]
        return [lane.bucket.segments[0].name.partition(".")[0] for lane in pushes]

    return list(dict.fromkeys(gossip.launch(node, 2)[1]))


@pytest.mark.parametrize(
    ("make_model", "forward"),
    [
        (Net, ["conv", "bn", "hidden", "out"]),
        (Backwards, ["first", "last"]),
        (Twice, ["a", "b", "tied", "out"]),
    ],
)
def test_the_first_layers_leave_first(
    monkeypatch: pytest.MonkeyPatch, make_model: Callable[[], nn.Module], forward: list[str]
) -> None:
    """All wait but the first to be ready, which is on its way: one of the last layer's."""
    last = forward[-1]
    order = posted(monkeypatch, "p3:slice=4,in_flight=1", make_model)
    assert order == [last, *(layer for layer in forward if layer != last)]
    order = posted(monkeypatch, "p3:slice=4,in_flight=1,order=fifo", make_model)
    assert order == forward[::-1]


def position(model: nn.Module, *ran: str) -> tuple[ForwardOrder, dict[str, int]]:
    order = ForwardOrder(model, set(model.parameters()))
    for name in ran:
        order.saw(model.get_submodule(name))
    if order.has_news:
        order.settle()
    return order, {name: order.position[p] for name, p in model.named_parameters()}


def test_before_the_first_forward_the_order_is_that_of_registration() -> None:
    order, places = position(Backwards())
    assert places["last.weight"] == places["last.bias"] < places["first.weight"]
    assert not any(order.is_placed(p) for p in order.position)


def test_a_parameter_belongs_to_the_nearest_module_that_runs() -> None:
    model = Attention()
    order, places = position(model, "", "embed", "attention", "out")
    assert places == {
        "embed.weight": 1,
        "embed.bias": 1,
        "out.weight": 3,
        "out.bias": 3,
        **dict.fromkeys([name for name in places if name.startswith("attention")], 2),
    }
    assert set(order.needs(model.attention)) == set(model.attention.parameters())
    assert order.needs(model) == ()
    order, places = position(direct := Direct(), "", "out", "out.0")
    called = {"out.0.weight", "out.0.bias"}
    assert {name for name, place in places.items() if place == 0} == places.keys() - called
    assert set(order.needs(direct)) == set(direct.parameters()) - set(direct.out.parameters())


def test_a_parameter_without_any_module_that_runs_is_not_placed() -> None:
    order, _ = position(model := Loose(), "features", "head")
    assert {p for p in order.position if not order.is_placed(p)} == {model.temperature}


def test_tied_parameters_are_as_urgent_as_their_first_use() -> None:
    model = Twice()
    order, places = position(model, "", "tied", "b", "a", "out")
    assert places["a.weight"] == 1 and places["a.bias"] == 3
    assert model.a.weight in order.needs(model.tied) and model.a.weight in order.needs(model.a)


# -- slices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slice", [1, 7, 50, 10**9])
@pytest.mark.parametrize("make_model", MODELS)
def test_slices_cover_the_layers(make_model: Callable[[], nn.Module], slice: int) -> None:
    flat_model = FlatModel(make_model(), pieces=make_algorithm(f"p3:slice={slice}").pieces(3))
    ends = [bucket.start + bucket.size for bucket in flat_model.buckets]
    assert [bucket.start for bucket in flat_model.buckets] == [0, *ends[:-1]] and ends[-1] == flat_model.size
    for b, bucket in enumerate(flat_model.buckets):
        assert 1 <= bucket.size <= slice
        assert len({s.name.rpartition(".")[0] for s in bucket.segments}) == 1  # one layer
        for s, p in zip(bucket.segments, bucket.parameters, strict=True):
            assert s.name.partition("[")[0] == flat_model.names[p] and s.name in bucket.label(b)
    sizes = dict[str, list[int]]()
    for bucket in flat_model.buckets:
        sizes.setdefault(bucket.segments[0].name.rpartition(".")[0], []).append(bucket.size)
    for of_layer in sizes.values():
        assert max(of_layer) - min(of_layer) <= 1 and len(of_layer) == math.ceil(sum(of_layer) / slice)


def test_big_layers_go_to_all_servers_in_the_baseline() -> None:
    pieces = make_algorithm("p3:slice=layer").pieces(4)
    assert pieces is not None
    assert [pieces(size) for size in (1, 1_000_000, 1_000_001)] == [1, 1, 4]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("spec", ["p3:slice=9", "p3:slice=layer"])
def test_bytes_follow_from_the_slices(spec: str, n: int) -> None:
    sizes = [bucket.size for bucket in FlatModel(Net(), pieces=make_algorithm(spec).pieces(n)).buckets]

    def node() -> tuple[int, int]:
        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm=spec)
        for _ in loop(model, optimizer, session):
            pass
        session.finish()
        taken = session.stats.take()
        return taken["bytes_sent"], taken["messages_sent"]

    for rank, (sent, messages) in enumerate(gossip.launch(node, n)):
        own = [b % n == rank for b in range(len(sizes))]
        copies = [n - 1 if mine else 1 for mine in own] if n > 1 else [0] * len(sizes)
        assert sent == STEPS * sum(4 * size * count for size, count in zip(sizes, copies, strict=True))
        assert messages == STEPS * sum(copies)


# -- between step() and the next forward --------------------------------------------------------------------

LOOKS: dict[str, Callable[[Session, nn.Module, torch.optim.Optimizer], object]] = {
    "wait": lambda node, model, optimizer: node.wait(),
    "state_dict": lambda node, model, optimizer: model.state_dict(),
    "child's state_dict": lambda node, model, optimizer: model.get_submodule("out").state_dict(),
    "optimizer.state_dict": lambda node, model, optimizer: optimizer.state_dict(),
    "load_state_dict": lambda node, model, optimizer: model.load_state_dict(model.state_dict()),
    "optimizer.load_state_dict": lambda node, model, optimizer: optimizer.load_state_dict(
        optimizer.state_dict()
    ),
    "node.state_dict": lambda node, model, optimizer: node.state_dict(),
    "averaged": lambda node, model, optimizer: node.averaged_state_dict(),
    "consensus": lambda node, model, optimizer: node.consensus_distance(),
    "gradient_norm": lambda node, model, optimizer: node.gradient_norm(),
    "eval": lambda node, model, optimizer: evaluate(model, torch.no_grad()),
    "inference": lambda node, model, optimizer: evaluate(model, torch.inference_mode()),
}


def evaluate(model: nn.Module, mode: Any) -> None:
    with mode:
        model.eval()(batches(0, 1)[0][0])
    model.train()


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_looks_at_the_model_sees_the_whole_step(name: str) -> None:
    """And the numbers stay what they are."""

    def node() -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = adamw()(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60")
        xs = []
        for k in loop(model, optimizer, session):
            assert k == 0 or session.rank > 0 or parked(session)
            LOOKS[name](session, model, optimizer)
            assert not parked(session)
            xs.append(flat(model))
        session.finish()
        return xs

    assert_same(
        gossip.launch(node, 2),
        [x[:-1] for x in run(2, make_optimizer=adamw(), algorithm="p3:slice=60", look=wait, overlap=False)],
    )


def test_the_norm_is_that_of_the_mean_gradient() -> None:
    norms: dict[bool, list[float]] = {True: [], False: []}
    for overlap, found in norms.items():

        def look(node: Session, model: nn.Module, found: list[float] = found) -> None:
            found.append(node.gradient_norm())

        run(algorithm="p3", overlap=overlap, look=look)
    assert norms[True] == norms[False] and min(norms[True]) > 0


@pytest.mark.parametrize("make_optimizer", [sgd, adamw()])
def test_resuming_changes_nothing(make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    def first() -> bytes:
        torch.manual_seed(0)
        model = Net()
        optimizer = make_optimizer(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60")
        for _ in loop(model, optimizer, session, range(3)):
            pass
        file = io.BytesIO()
        torch.save([session.state_dict(), model.state_dict(), optimizer.state_dict()], file)
        session.finish()
        return file.getvalue()

    files = gossip.launch(first, N)

    def second() -> list[Tensor]:
        model = Net()
        optimizer = make_optimizer(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60")
        saved = torch.load(io.BytesIO(files[session.rank]), weights_only=True)
        steps = loop(model, optimizer, session, range(3, STEPS))
        model.load_state_dict(saved[1])
        session.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[2])
        for _ in steps:
            pass
        session.finish()
        return [flat(model)]

    assert_same(gossip.launch(second, N), run(make_optimizer=make_optimizer, algorithm="p3:slice=60"))


def test_a_script_that_forgets_to_finish_still_serves_the_others() -> None:
    def forget() -> list[nn.Module]:
        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60")
        for _ in loop(model, optimizer, session):
            pass
        return [model]

    ended = [[flat(model) for model in models] for models in gossip.launch(forget, N)]
    assert_same(ended, run(algorithm="p3:slice=60"))


def test_a_rank_that_waits_for_something_else_serves_the_others() -> None:
    """Rank 0 is in a collective while the others are in a forward that needs what it has to send on."""

    def node() -> list[Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60,in_flight=1")
        for _ in loop(model, optimizer, session):
            if session.rank == 0:
                session.world.barrier()
            else:
                F.cross_entropy(model(batches(0, 1)[0][0]), batches(0, 1)[0][1])
                session.world.barrier()
        session.finish()
        return [flat(model)]

    gossip.launch(node, N)


@needs_mpi
@pytest.mark.mpi
def test_between_processes() -> None:
    job = mpirun(4, "-m", "tests.mpi.p3_laws", timeout=240)
    assert job.returncode == 0, job.output
    everyone = json.loads(job.stdout)
    assert len(everyone) == 4
    virtual = gossip.launch(p3_laws.results, 4)
    assert {digest for of_rank in [*everyone, *virtual] for digest in of_rank.values()} == {
        virtual[0]["hooks"]
    }


# -- other ways to make a step -------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
def test_accumulated_parts_equal_one_batch(overlap: bool) -> None:
    def accumulate(parts: int) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = sgd(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60", overlap=overlap)
        for x, y in batches(session.rank, 4):
            optimizer.zero_grad()
            backward_in_parts(session, model, x, y, parts)
            optimizer.step()
        session.finish()
        return flat(model)

    for whole, parts in zip(gossip.launch(accumulate, N, 1), gossip.launch(accumulate, N, 3), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


Act = Callable[[Session, nn.Module, torch.optim.Optimizer, int], object]


def manual(
    steps: int,
    act: Act,
    finish: bool = True,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    **options: Any,
) -> Tensor:
    """Train, with `act` in place of zero_grad and step; the parameters at the end."""
    torch.manual_seed(0)
    model = Net()
    optimizer = make_optimizer(model)
    session = gossip.join(model, optimizer, algorithm="p3:slice=60", **options)
    for k, (x, y) in enumerate(batches(session.rank, steps)):
        F.cross_entropy(model(x), y).backward()
        act(session, model, optimizer, k)
    if finish:
        session.finish()
    return flat(model)


def step_without_a_gradient(
    session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int
) -> None:
    model.get_parameter("hidden.weight").grad = None
    optimizer.step()


@pytest.mark.parametrize(
    "act",
    [
        lambda session, model, optimizer, k: session.skip() if k % 3 == 1 else optimizer.step(),
        lambda session, model, optimizer, k: optimizer.step(),  # without zero_grad
        lambda session, model, optimizer, k: (optimizer.step(), optimizer.zero_grad(set_to_none=False)),
        step_without_a_gradient,
    ],
    ids=["skip", "no zero_grad", "zeros", "dropped gradient"],
)
def test_unusual_loops_do_the_same_without_overlap(act: Any) -> None:
    lazy = gossip.launch(lambda: manual(6, act), 2)
    eager = gossip.launch(lambda: manual(6, act, overlap=False), 2)
    assert all(torch.equal(x, eager[0]) for x in [*lazy, *eager])


def test_a_skipped_step_changes_nothing() -> None:
    def skip_all(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
        session.skip()

    torch.manual_seed(0)
    start = flat(Net())
    assert all(torch.equal(x, start) for x in gossip.launch(lambda: manual(4, skip_all), 2))


def test_autocast_does_not_reach_the_update() -> None:
    """The hooks that apply it run inside the user's autocast."""

    def node(overlap: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3))
        optimizer = adamw()(model)
        session = gossip.join(model, optimizer, algorithm="p3:slice=60", overlap=overlap)
        for x, y in batches(session.rank, 4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        session.finish()
        return [flat(model), *(v for p in model.parameters() for v in optimizer.state[p].values())]

    assert_same(gossip.launch(node, 2, True), gossip.launch(node, 2, False))


# -- what cannot be done ------------------------------------------------------------------------------------


class PerGroup(Derived):
    """Counts its steps in the group, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        return super().step(closure)


def per_group(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = PerGroup(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["k"] = 0
    return optimizer


class Sneaky(nn.Module):
    """Calls its layer in the first forward, and goes round its hooks in the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(16, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = x.flatten(1)
        return self.layer(x) if self.calls == 1 else F.linear(x, self.layer.weight, self.layer.bias)


def scale(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


REFUSED: dict[str, tuple[Callable[[nn.Module, torch.optim.Optimizer], object], str]] = {
    "clip_grad_norm_": (lambda m, o: nn.utils.clip_grad_norm_(m.parameters(), 1.0), "clip_grad_norm_"),
    "clip_grad_value_": (lambda m, o: nn.utils.clip_grad_value_(m.parameters(), 1.0), "still on their way"),
    "GradScaler": (scale, "still on their way"),
    "two optimizers": (lambda m, o: sgd(m).step(), "a second optimizer"),
    "closure": (lambda m, o: o.step(lambda: 0.0), "closure"),
    "second backward": (
        lambda m, o: F.cross_entropy(m(batches(0, 1)[0][0]), batches(0, 1)[0][1]).backward(),
        r"node\.no_sync",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_gradients_before_the_step_is_refused(name: str) -> None:
    do, text = REFUSED[name]
    with pytest.raises(UsageError, match=text):
        gossip.launch(lambda: manual(2, lambda session, model, optimizer, k: do(model, optimizer)), 2)


def clamp(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.clamp_(-0.05, 0.05)


def test_parameters_written_to_before_their_update_are_an_error() -> None:
    with pytest.raises(UsageError, match=r"'\w+\.\w+' was written to after step\(\), before its update"):
        gossip.launch(lambda: manual(4, clamp), 2)
    results = gossip.launch(lambda: manual(4, clamp, overlap=False), 2)
    assert torch.equal(results[0], results[1]) and results[0].abs().max() <= 0.0501


def test_without_overlap_gradients_can_be_clipped() -> None:
    def clip(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
        optimizer.step()

    results = gossip.launch(lambda: manual(4, clip, overlap=False), 2)
    assert torch.equal(results[0], results[1])


def test_a_skipped_first_step_shows_nothing_about_the_optimizer() -> None:
    def skip_first(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
        session.skip() if k == 0 else optimizer.step()

    with pytest.raises(UsageError, match="PerGroup keeps 'k' per group"):
        gossip.launch(lambda: manual(4, skip_first, make_optimizer=per_group), 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"make_optimizer": per_group}, "PerGroup keeps 'k' per group"),
        ({"make_model": Sneaky}, r"parameter 'layer\.\w+' was used before it had its last update"),
        ({"make_model": lambda: torch.compile(Net())}, "the model is compiled"),
        ({"bucket_mb": 1.0}, "p3:slice="),
        ({"order": "fifo"}, "--algorithm p3:order=fifo"),
        ({"algorithm": "allreduce", "order": "priority"}, "allreduce takes means"),
        ({"algorithm": "powersgd", "order": "priority"}, "powersgd takes means"),
        ({"algorithm": "dpsgd", "order": "priority"}, "dpsgd exchanges parameters"),
        ({"algorithm": "qsgd", "order": "random"}, "'fifo' or 'priority'"),
        ({"algorithm": "p3:slice=0"}, "slice=0"),
        ({"algorithm": "p3:slice=some"}, "a whole number or layer"),
        ({"algorithm": "p3:in_flight=0"}, "in_flight=0"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        run(2, **{"algorithm": "p3", **options})


def test_a_lost_peer_is_named_with_the_slice() -> None:
    def node() -> None:
        leaves = gossip.world().rank == 1
        manual(3 if leaves else 5, lambda session, model, optimizer, k: optimizer.step(), finish=not leaves)

    with pytest.raises(PeerLostError, match=r"slice \d+ \([\w.]+(\[\d+:\d+\])?.*rank 1, which has left"):
        gossip.launch(node, 2)


def test_nan_names_rank_and_round() -> None:
    def poison(session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, k: int) -> None:
        optimizer.step()
        if k == 2 and session.rank == 1:
            session.wait()
            with torch.no_grad():
                model.get_parameter("out.bias").fill_(math.nan)

    with pytest.raises(DivergedError, match="rank 1, round 4"):
        gossip.launch(lambda: manual(6, poison), 3)


@pytest.mark.parametrize("spec", SPECS)
def test_specs_round_trip(spec: str) -> None:
    assert make_algorithm(str(make_algorithm(spec))) == make_algorithm(spec)
