"""Virtual nodes obey the transport laws that MPI ranks obey, and share one process fairly."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import gossip
from gossip.errors import DeadlockError, PeerLostError
from tests.transport_laws import LAWS


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", LAWS)
def test_law(name: str, n: int) -> None:
    gossip.launch(lambda: LAWS[name](gossip.world()), n)


def draw_and_wait() -> list[float]:
    """Draw from all global streams, letting the others run in between."""
    drawn = []
    for _ in range(3):
        drawn += [random.random(), float(np.random.rand()), float(torch.rand(()))]
        gossip.world().barrier()
    return drawn


def test_random_streams_are_each_nodes_own() -> None:
    """All start from the caller's state, and none disturbs another or the caller."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = torch.get_rng_state()
    together = gossip.launch(draw_and_wait, 4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(drawn == together[0] for drawn in together)
    assert together == gossip.launch(draw_and_wait, 4)
    assert gossip.launch(draw_and_wait, 1)[0] == together[0]


def test_waiting_for_what_nobody_sends_is_a_deadlock_at_once() -> None:
    def wait_in_vain() -> None:
        receipt = gossip.world().expect((gossip.world().rank + 1) % 3, 0, 8)
        gossip.world().wait(lambda: receipt.done, 60)

    with pytest.raises(DeadlockError):
        gossip.launch(wait_in_vain, 3)


def test_a_collective_without_a_rank_that_left_names_it() -> None:
    def leave_early() -> None:
        if gossip.world().rank != 1:
            gossip.world().barrier()

    with pytest.raises(PeerLostError, match="rank 1 has left"):
        gossip.launch(leave_early, 3)


def test_nested_calls_see_their_own_node() -> None:
    assert gossip.launch(lambda: gossip.world().rank, 3) == [0, 1, 2]
    assert gossip.world().size == 1


FOREVER = """
import signal, gossip
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
def loop():
    if gossip.world().rank == 0:
        print("running", flush=True)
    while True:
        gossip.world().barrier()
gossip.launch(loop, 3)
"""


def test_ctrl_c_ends_all_nodes() -> None:
    """As it ends any Python program: with KeyboardInterrupt, not with an abort because threads are left."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOREVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert stderr.rstrip().endswith("KeyboardInterrupt")
