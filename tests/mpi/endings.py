"""Ways in which a job can end: ``mpirun -n N python -m tests.mpi.endings NAME``.

Rank 0 prints the time at which all ranks were there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch

import gossip
from gossip.errors import DivergedError, PeerLostError, UsageError
from gossip.transport.base import Pending, Transport
from tests.mpi.apart import apart
from tests.mpi.slow_copies import slow_copies
from tests.transport_laws import message, neighbors, wait_for


def receive_for_ever(world: Transport) -> None:
    """What a training loop does: wait for a neighbour, and say which when it has left."""
    left, _ = neighbors(world)
    receipt = world.expect(left, 7, 100)
    world.wait(lambda: receipt.done or left in world.departed, 60)
    if not receipt.done:
        raise PeerLostError(
            f"rank {world.rank} waits for rank {left}, which has left ({world.departed[left]})"
        )
    raise AssertionError("nobody sends this")


def wait_or_departed(world: Transport, pending: Pending) -> None:
    world.wait(lambda: pending.done or 1 in world.departed, 60)


def raises(world: Transport) -> None:
    if world.rank == 1:
        raise ZeroDivisionError("the cause")
    receive_for_ever(world)


def raises_in_thread(world: Transport) -> None:
    def work() -> None:
        raise ZeroDivisionError("the cause")

    if world.rank == 1:
        threading.Thread(target=work).start()
    world.barrier()
    receive_for_ever(world)


def exits(world: Transport) -> None:
    """The last rank leaves by sys.exit, which no hook sees, with a message on its way."""
    _, right = neighbors(world)
    if world.rank == world.size - 1:
        world.post(message(2_000_000, world.rank), right, 99)  # its receiver never asks for it
        sys.exit(5)
    receive_for_ever(world)


def exits_before_collective(world: Transport) -> None:
    if world.rank == 1:
        sys.exit(5)
    world.barrier()


def exits_before_mean(world: Transport) -> None:
    """A mean that one rank never joins, and nobody is able to complete."""
    channel = world.open_channels(1)
    if world.rank == 1:
        sys.exit(5)
    pending = world.start_mean(torch.ones(1_000_000), channel)
    wait_or_departed(world, pending)
    raise PeerLostError(f"rank 1 has left ({world.departed[1]})")


def exits_before_ring(world: Transport) -> None:
    apart(world)
    exits_before_mean(world)


def forgets(world: Transport) -> None:
    """No close, and every kind of request pending: sends, long and queued, receives, a mean, notes."""
    apart(world)
    left, right = neighbors(world)
    channel = world.open_channels(1)
    for tag in (1, 2, 3):
        for number in range(3):
            world.post(message(1_500_000, world.rank, number), right, tag)
        world.expect(left, tag + 1, 2_000_000)  # tag 1 is never asked for, tag 4 never sent
    world.start_mean(torch.ones(1_000_000), channel)
    world.note("bye", "x" * 100_000)
    if world.rank == 0:
        world.start_mean(torch.ones(1_000_000), channel)  # one more than the others


def leaves_in_turn(world: Transport) -> None:
    """What a rank has sent before it left still arrives, and nobody is told too early that it has left."""
    left, right = neighbors(world)
    channel = world.open_channels(1)
    lengths = (10, 3_000_000, 20)
    if world.rank == 1:
        for number, length in enumerate(lengths):
            world.post(message(length, 1, number), right, 5)
        mean = world.start_mean(torch.full((1000,), 1.0), channel)
        wait_for(world, mean)
        world.barrier()
        world.close()
        return
    if left == 1:
        time.sleep(0.5)
        for number, length in enumerate(lengths):
            receipt = world.expect(1, 5, length)
            wait_or_departed(world, receipt)
            assert receipt.done, "declared departed while a message was on its way"
            assert torch.equal(receipt.payload(), message(length, 1, number))
    mean = world.start_mean(torch.full((1000,), 1.0), channel)
    wait_or_departed(world, mean)
    assert mean.done and bool((mean.value() == 1).all())
    world.barrier()
    assert world.wait(lambda: 1 in world.departed and world.notes["left"][1] == "finished", 60)
    try:
        world.allgather(1)
    except PeerLostError as error:
        assert "rank 1 has left" in str(error)
    else:
        raise AssertionError("gathered without rank 1")


def leaves_while_copying(world: Transport) -> None:
    """A message that is not in the host's memory yet when its sender leaves still arrives."""
    left, right = neighbors(world)
    if world.rank == 1:
        with slow_copies(1000):
            world.post(message(100, 1), right, 5)
    elif left == 1:
        receipt = world.expect(1, 5, 100)
        wait_or_departed(world, receipt)
        assert receipt.done and torch.equal(receipt.payload(), message(100, 1))
    world.close()


def wrong_usage(world: Transport) -> None:
    raise UsageError("type this instead")


def diverges(world: Transport) -> None:
    """The others are in a collective and see the note."""
    if world.rank == 1:
        world.note("diverged", {"round": 3})
        raise DivergedError("NaN in round 3")
    world.barrier()


def is_interrupted(world: Transport) -> None:
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    receive_for_ever(world)


ENDINGS: dict[str, Callable[[Transport], None]] = {
    ending.__name__: ending
    for ending in (
        raises,
        raises_in_thread,
        exits,
        exits_before_collective,
        exits_before_mean,
        exits_before_ring,
        forgets,
        leaves_in_turn,
        leaves_while_copying,
        wrong_usage,
        diverges,
        is_interrupted,
    )
}

if __name__ == "__main__":
    transport = gossip.world()
    transport.barrier()
    if transport.rank == 0:
        print(f"started {time.time()}", flush=True)
    ENDINGS[sys.argv[1]](transport)
