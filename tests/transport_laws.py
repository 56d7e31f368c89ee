"""What every transport must do, as functions that all ranks call alike.

Each takes this rank's `Transport` and fails by an assertion. They run on any number of ranks, one after the
other on the same transport, and leave nothing in flight.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gossip.transport.base import Pending, Transport

PATIENCE = 60.0  # seconds
RING_SIZES = (0, 1, 7, 4096, 4097, 65_536, 1_000_003, 64 * 2**20)


def wait_for(transport: Transport, *pending: Pending) -> None:
    assert transport.wait(lambda: all(each.done for each in pending), PATIENCE), "nothing arrived"


def message(length: int, sender: int, number: int = 0) -> Tensor:
    """Distinct bytes, cheap to make: they count up, with a period of 251, from a start of its own."""
    start = (17 * sender + 5 * number + 1) % 251
    period = torch.arange(251, dtype=torch.uint8)
    return period.repeat(length // 251 + 2)[start : start + length].clone()


def neighbors(transport: Transport) -> tuple[int, int]:
    return (transport.rank - 1) % transport.size, (transport.rank + 1) % transport.size


def law_ring_exchange(transport: Transport) -> None:
    """Everybody sends to both sides at once, from nothing to 64 MB; one rank is its own neighbour."""
    left, right = neighbors(transport)
    for length in RING_SIZES:
        tag = transport.reserve_tags(2)
        from_left = transport.expect(left, tag, length)
        from_right = transport.expect(right, tag + 1, length)
        mine = message(length, transport.rank)
        sends = transport.post(mine, right, tag), transport.post(mine, left, tag + 1)
        wait_for(transport, from_left, from_right, *sends)
        for receipt, sender in ((from_left, left), (from_right, right)):
            assert receipt.payload().dtype is torch.uint8
            assert torch.equal(receipt.payload(), message(length, sender)), length


def law_length_travels_with_the_message(transport: Transport) -> None:
    """A receive names the most that may come; the payload is as long as what was sent."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(1)
    lengths = (0, 1, 999, 1000)
    receipts = [transport.expect(left, tag, 1000) for _ in lengths]
    sends = [transport.post(message(length, transport.rank), right, tag) for length in lengths]
    wait_for(transport, *receipts, *sends)
    assert [receipt.payload().shape for receipt in receipts] == [(length,) for length in lengths]


def law_order_within_a_tag(transport: Transport) -> None:
    """Long and short messages under one tag are received in the order they were sent."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(1)
    lengths = [(1, 200_000, 100)[k % 3] for k in range(12)]
    receipts = [transport.expect(left, tag, 200_000) for _ in lengths]
    sends = [transport.post(message(m, transport.rank, k), right, tag) for k, m in enumerate(lengths)]
    wait_for(transport, *receipts, *sends)
    for k, (m, receipt) in enumerate(zip(lengths, receipts, strict=True)):
        assert torch.equal(receipt.payload(), message(m, left, k)), k


def law_tags_are_apart(transport: Transport) -> None:
    """Messages under different tags may be awaited in another order than they were sent."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(6)
    sends = [transport.post(message(3000, transport.rank, k), right, tag + k) for k in range(6)]
    for k in reversed(range(6)):
        receipt = transport.expect(left, tag + k, 3000)
        wait_for(transport, receipt)
        assert torch.equal(receipt.payload(), message(3000, left, k)), k
    wait_for(transport, *sends)


def law_done_means_matched(transport: Transport) -> None:
    """A send is done when its receiver has asked for it, not when it has left; later ones queue."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(1)
    sends = [transport.post(message(10, transport.rank, k), right, tag) for k in range(4)]
    transport.barrier()
    for _ in range(20):
        transport.poll()
    assert not any(send.done for send in sends)
    transport.barrier()
    first = transport.expect(left, tag, 10)
    wait_for(transport, first, sends[0])
    assert not any(send.done for send in sends[1:])
    transport.barrier()
    rest = [transport.expect(left, tag, 10) for _ in range(3)]
    wait_for(transport, *rest, *sends)
    for k, receipt in enumerate([first, *rest]):
        assert torch.equal(receipt.payload(), message(10, left, k)), k


def law_everybody_to_everybody(transport: Transport) -> None:
    """All pairs at once, the rank itself included."""
    tag, ranks = transport.reserve_tags(1), range(transport.size)
    receipts = [transport.expect(j, tag, 50_000) for j in ranks]
    sends = [transport.post(message(50_000, transport.rank, j), j, tag) for j in ranks]
    wait_for(transport, *receipts, *sends)
    for j in ranks:
        assert torch.equal(receipts[j].payload(), message(50_000, j, transport.rank)), j


def law_bytes_count_what_was_sent(transport: Transport) -> None:
    """The sum over all messages of their length, once per destination; the rest is free."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(2)
    bytes_before, messages_before = transport.bytes_sent, transport.messages_sent
    lengths = [0, 3, 70_000, 12 + transport.rank]
    receipts = [transport.expect(j, tag + k, 70_000) for k, j in enumerate((left, right)) for _ in lengths]
    sends = [
        transport.post(message(length, transport.rank), j, tag + k)
        for k, j in enumerate((right, left))
        for length in lengths
    ]
    wait_for(transport, *receipts, *sends)
    transport.allgather("free")
    transport.broadcast(torch.zeros(100))
    transport.note("free", 1)
    assert transport.bytes_sent - bytes_before == 2 * sum(lengths)
    assert transport.messages_sent - messages_before == 2 * len(lengths)


def law_mean(transport: Transport) -> None:
    """The mean over all ranks, the same bits everywhere; the source may be overwritten at once."""
    channel, n = transport.open_channels(1), transport.size
    for shape in ((1,), (1000,), (300_001,)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(transport.rank))
        want = torch.stack(
            [torch.randn(shape, generator=torch.Generator().manual_seed(r)) for r in range(n)]
        ).double()
        pending = transport.start_mean(x, channel)
        x.fill_(torch.nan)
        wait_for(transport, pending)
        mean = pending.value()
        assert mean.shape == shape and mean.dtype is torch.float32
        assert torch.equal(mean, pending.value()), "asking twice"
        bound = n * 2.0**-24 * want.abs().mean(0) + 1e-38  # n - 1 additions and a division
        assert bool(((mean.double() - want.mean(0)).abs() <= bound).all()), shape
        assert len(set(transport.allgather(mean.numpy().tobytes()))) == 1, shape


def law_means_are_of_float32(transport: Transport) -> None:
    """Others are refused before anything is sent."""
    channel, before = transport.open_channels(1), transport.bytes_sent
    for dtype in (torch.bfloat16, torch.float64, torch.int64):
        try:
            transport.start_mean(torch.zeros(3, dtype=dtype), channel)
        except TypeError as error:
            assert str(dtype) in str(error)
            continue
        raise AssertionError(dtype)
    assert transport.bytes_sent == before


def law_long_and_short_means_of_a_channel_do_not_mix(transport: Transport) -> None:
    """Six in flight, long ones between short ones, awaited from the last on."""
    channel, n = transport.open_channels(1), transport.size
    lengths = [40_001, 3, 90_000, 1, 40_001, 100]
    started = [
        transport.start_mean(torch.full((length,), float(i + transport.rank)), channel)
        for i, length in enumerate(lengths)
    ]
    for i, pending in reversed(list(enumerate(started))):
        wait_for(transport, pending)
        assert torch.equal(pending.value(), torch.full((lengths[i],), float(n * i + n * (n - 1) // 2)) / n)


def law_results_of_means_are_kept(transport: Transport) -> None:
    """Means of one channel may be in flight together, and later ones leave earlier results alone."""
    channel, n = transport.open_channels(1), transport.size
    kept = []
    for round_ in range(3):
        started = [
            transport.start_mean(torch.full((30_000,), float(10 * round_ + k + transport.rank)), channel)
            for k in range(2)
        ]
        for pending in started:
            wait_for(transport, pending)
            kept.append(pending.value())
    for i, mean in enumerate(kept):
        total = n * (10 * (i // 2) + i % 2) + n * (n - 1) // 2
        assert torch.equal(mean, torch.full((30_000,), float(total)) / n)


def law_means_taken_in_inference_mode_leave_nothing_behind(transport: Transport) -> None:
    channel = transport.open_channels(1)
    n = transport.size
    for inference, length in itertools.product((True, False, True), (1_000, 50_000)):
        with torch.inference_mode(inference):
            pending = transport.start_mean(torch.full((length,), float(transport.rank)), channel)
            wait_for(transport, pending)
            assert torch.equal(pending.value(), torch.full((length,), float(n * (n - 1) // 2)) / n)


def law_means_complete_in_any_order(transport: Transport) -> None:
    """Every rank starts its channels in an order of its own, and awaits them in another."""
    channels, n = 5, transport.size
    first = transport.open_channels(channels)
    for round_ in range(4):
        pending = {}
        for k in range(channels):
            c = (k * (1 + transport.rank % 3) + transport.rank + round_) % channels
            x = torch.full((20_000 * c + 1,), float(c + transport.rank))
            pending[c] = transport.start_mean(x, first + c)
            if transport.rank % 2:
                transport.poll()
        for k in range(channels):
            c = (k + transport.rank) % channels
            wait_for(transport, pending[c])
            total = torch.full((20_000 * c + 1,), float(n * c + n * (n - 1) // 2))  # exact in any order
            assert torch.equal(pending[c].value(), total / n)


def law_mean_counts_as_ring_allreduce(transport: Transport) -> None:
    """2(n-1)/n of its bytes: what a ring sends (test_ring.py), for short ones whatever MPI really does."""
    channel = transport.open_channels(1)
    for length in (999, 100_001):
        before = transport.bytes_sent
        wait_for(transport, transport.start_mean(torch.ones(length), channel))
        assert transport.bytes_sent - before == 2 * (transport.size - 1) * length * 4 // transport.size


def law_notes_reach_everybody(transport: Transport) -> None:
    """The latest of each kind from each rank, one's own included."""
    everybody = set(range(transport.size))
    transport.note("law", "old")
    transport.note("law", {"rank": transport.rank, "text": "é" * 100})
    transport.note("other", [transport.rank, None, 0.5])

    def arrived() -> bool:
        law, other = transport.notes.get("law", {}), transport.notes.get("other", {})
        return law.keys() == other.keys() == everybody and "old" not in law.values()

    assert transport.wait(arrived, PATIENCE), transport.notes
    for rank in everybody:
        assert transport.notes["law"][rank] == {"rank": rank, "text": "é" * 100}
        assert transport.notes["other"][rank] == [rank, None, 0.5]
    transport.barrier()  # nobody overwrites a note that another rank still has to check


def law_allgather(transport: Transport) -> None:
    """Any object, of any size, by rank."""
    for scale in (0, 1, 10_000):
        everyone = transport.allgather({"rank": transport.rank, "data": "x" * (scale * transport.rank)})
        assert everyone == [{"rank": r, "data": "x" * (scale * r)} for r in range(transport.size)]
    tensors = transport.allgather(torch.arange(transport.rank))
    assert [tensor.tolist() for tensor in tensors] == [list(range(r)) for r in range(transport.size)]


def law_broadcast(transport: Transport) -> None:
    """Any dtype and strides, from any root; what lies between the strides is not touched."""

    def tensors(seed: int) -> list[Tensor]:
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(2, 3, 8, 8, generator=g)
        return [
            base.clone(),
            base.to(memory_format=torch.channels_last),
            base[0, 0].t(),
            base[0, 1, ::2, 1::3],
            base.bfloat16(),
            base.double(),
            base > 0,
            torch.randint(-(2**40), 2**40, (5,), generator=g),
            torch.randint(9, (), generator=g),
            torch.empty(0),
            torch.nn.Parameter(base[0].clone()),
            torch.randn(300_000, generator=g),
        ]

    for root in {0, transport.size - 1}:
        for mine, wanted in zip(tensors(transport.rank), tensors(root), strict=True):
            strides = mine.stride()
            transport.broadcast(mine, root)
            assert mine.stride() == strides and torch.equal(mine, wanted), (root, wanted.shape, wanted.dtype)
    whole = torch.full((6, 6), float(transport.rank))
    transport.broadcast(whole[:, ::2])
    assert torch.equal(whole[:, ::2], torch.zeros(6, 3))
    assert torch.equal(whole[:, 1::2], torch.full((6, 3), float(transport.rank)))


def law_barrier(transport: Transport) -> None:
    """Nobody returns before everybody has come. (One host, so one clock.)"""
    for late in range(min(transport.size, 3)):
        if transport.rank == late:
            time.sleep(0.03)
        came = time.monotonic()
        transport.barrier()
        went = time.monotonic()
        times = transport.allgather((came, went))
        assert max(came for came, _ in times) <= min(went for _, went in times)


def law_messages_move_during_collectives(transport: Transport) -> None:
    """A rank that sits in the control plane still serves what the others wait for."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(1)
    receipt = transport.expect(left, tag, 2_000_000)
    send = transport.post(message(2_000_000, transport.rank), right, tag)
    if transport.rank % 2:
        transport.barrier()
    wait_for(transport, receipt, send)
    if not transport.rank % 2:
        transport.barrier()
    assert torch.equal(receipt.payload(), message(2_000_000, left))


LAWS: dict[str, Callable[[Transport], None]] = {
    name.removeprefix("law_"): law for name, law in list(globals().items()) if name.startswith("law_")
}
