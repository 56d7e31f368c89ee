"""Every transport law, and what only MPI does, on the ranks of this job.

    mpirun -n 4 python -m tests.mpi.transport_laws

Rank 0 prints, as JSON, the names that every rank has passed. A failure ends the job with its traceback.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import threading
import time
from collections.abc import Callable
from unittest.mock import patch

import torch

import gossip
from gossip.errors import GossipError, UsageError
from gossip.transport import mpi
from gossip.transport.base import Transport
from gossip.transport.environment import env_rank, env_size
from tests.mpi.apart import apart
from tests.mpi.slow_copies import slow_copies
from tests.transport_laws import LAWS, message, neighbors, wait_for


def launcher_agrees_with_mpi(transport: Transport) -> None:
    """The environment says the same as MPI; on one host, local ranks are ranks."""
    assert (env_rank(), env_size()) == (transport.rank, transport.size)
    hosts = transport.allgather((transport.local_rank, transport.local_size))
    assert hosts == [(rank, transport.size) for rank in range(transport.size)]  # the tests use one host


def wait_gives_up(transport: Transport) -> None:
    """False after the time given, not much later."""
    start = time.monotonic()
    assert transport.wait(lambda: False, 0.05) is False
    assert 0.05 <= time.monotonic() - start < 5


def too_long_a_message_is_an_error(transport: Transport) -> None:
    """It names both ranks and the length; the transport works on."""
    left, right = neighbors(transport)
    tag = transport.reserve_tags(1)
    receipt = transport.expect(left, tag, 10)
    send = transport.post(message(11, transport.rank), right, tag)
    try:
        transport.wait(lambda: receipt.done, 20)
    except GossipError as error:
        assert f"rank {transport.rank} expects at most 10 bytes from rank {left}" in str(error)
    else:
        raise AssertionError("no error")
    wait_for(transport, send)


def the_link_is_at_least_as_fast_as_what_it_carried(transport: Transport) -> None:
    """A large payload sets a rate: its bytes in the time until it was received."""
    left, right = neighbors(transport)
    tag, length = transport.reserve_tags(1), 1 << 20
    start = time.perf_counter()
    receipt, send = transport.expect(left, tag, length), transport.post(message(length, 0), right, tag)
    wait_for(transport, receipt, send)
    assert transport.fastest >= length / (time.perf_counter() - start)


def every_message_of_a_long_mean_is_an_arrival(transport: Transport) -> None:
    """So nobody loses patience while a long one is on its way."""
    channel, before = transport.open_channels(1), transport.arrived
    wait_for(transport, transport.start_mean(torch.ones(50_000), channel))
    assert transport.arrived - before == 2 * (transport.size - 1)


def what_is_copied_slowly_goes_out_whole_and_in_order(transport: Transport) -> None:
    """Messages and means wait for their copies in the host's memory; nobody waits in `post`."""
    left, right = neighbors(transport)
    tag, channel = transport.reserve_tags(2), transport.open_channels(2)
    receipts = [transport.expect(left, tag + i % 2, 10_000) for i in range(6)]
    lengths = (5, 40_000, 50_000, 3)  # short and on the ring
    with slow_copies(40, 3, 1, 17):
        sends = [transport.post(message(9_000 + i, transport.rank), right, tag + i % 2) for i in range(6)]
        means = [
            transport.start_mean(torch.full((n,), 2.0**i * (transport.rank + 1)), channel + i % 2)
            for i, n in enumerate(lengths)
        ]
    wait_for(transport, *receipts, *sends, *means)
    for i, receipt in enumerate(receipts):
        assert torch.equal(receipt.payload(), message(9_000 + i, left)), i
    for i, mean in enumerate(means):
        assert mean.value().tolist() == [2.0**i * (transport.size + 1) / 2] * lengths[i], i


def a_long_tensor_is_broadcast_in_pieces(transport: Transport) -> None:
    """MPI cannot count the bytes of a large model."""
    starts: list[int] = []
    started = mpi.MPITransport._collect

    def collect(self: mpi.MPITransport, name: str, start: Callable[..., object]) -> None:
        starts.append(1)
        started(self, name, start)  # type: ignore[arg-type]

    x = torch.arange(1000) * (1 + transport.rank)
    with patch.object(mpi, "PIECE_BYTES", 3000), patch.object(mpi.MPITransport, "_collect", collect):
        transport.broadcast(x, transport.size - 1)
    assert len(starts) == 3 and torch.equal(x, torch.arange(1000) * transport.size)


def what_mpi_cannot_count_is_refused(transport: Transport) -> None:
    """The message tells how to cut the model; nothing is sent, and nobody is taken for lost."""
    channel, before = transport.open_channels(1), transport.messages_sent
    mean_of_many = [lambda: transport.start_mean(torch.zeros(11), channel)] if transport.size > 1 else []
    with patch.object(mpi, "LONGEST", 10):
        for call in (
            lambda: transport.post(message(11, 0), 0, 0),
            lambda: transport.expect(0, 0, 11),
            *mean_of_many,
        ):
            try:
                call()
            except UsageError as error:
                assert "--bucket-mb" in str(error)
                continue
            raise AssertionError("no error")
    assert transport.messages_sent == before and not transport.departed


def bad_calls_are_refused(transport: Transport) -> None:
    """Before anything is sent."""
    for call, kind in (
        (lambda: transport.post(torch.zeros(3), 0, 0), TypeError),
        (lambda: transport.post(torch.zeros(3, 3, dtype=torch.uint8), 0, 0), TypeError),
        (lambda: transport.start_mean(torch.zeros(3), 1_000_000), ValueError),
    ):
        try:
            call()
        except kind:
            continue
        raise AssertionError(kind)


def fail() -> None:
    raise ZeroDivisionError("in a thread of the child")


def fail_in_thread() -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()


def a_child_process_is_no_rank(transport: Transport) -> None:
    """The errors and the end of a fork, such as a data loader's worker, are its own."""
    if transport.rank == 0:
        child = multiprocessing.get_context("fork").Process(target=fail_in_thread)
        child.start()
        child.join()
        assert child.exitcode == 0
    transport.barrier()


ONLY_MPI: dict[str, Callable[[Transport], None]] = {
    law.__name__: law
    for law in (
        launcher_agrees_with_mpi,
        wait_gives_up,
        too_long_a_message_is_an_error,
        the_link_is_at_least_as_fast_as_what_it_carried,
        what_is_copied_slowly_goes_out_whole_and_in_order,
        a_long_tensor_is_broadcast_in_pieces,
        what_mpi_cannot_count_is_refused,
        bad_calls_are_refused,
        a_child_process_is_no_rank,
    )
}

BETWEEN_HOSTS: dict[str, Callable[[Transport], None]] = {
    "every_message_of_a_long_mean_is_an_arrival": every_message_of_a_long_mean_is_an_arrival,
    **{f"{name} between hosts": law for name, law in LAWS.items() if "mean" in name},
    "what_is_copied_slowly between hosts": what_is_copied_slowly_goes_out_whole_and_in_order,
}

if __name__ == "__main__":
    world = gossip.world()
    passed = []
    for name, law in {**LAWS, **ONLY_MPI}.items():
        law(world)
        passed.append(name)
    apart(world)
    for name, law in BETWEEN_HOSTS.items():
        law(world)
        passed.append(name)
    everyone = world.allgather(passed)
    if world.rank == 0:
        print(json.dumps(everyone), flush=True)
    world.close()
    world.close()
