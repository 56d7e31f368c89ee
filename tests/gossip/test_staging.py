"""Copies to the host: whole when they say so, and of what the tensor held when they were asked for."""

from __future__ import annotations

import pytest
import torch

from gossip.transport.staging import host_empty, to_host

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_what_is_on_the_host_stays_where_it_is() -> None:
    x = torch.arange(5, dtype=torch.float32, requires_grad=True)
    staged = to_host(x)
    assert staged.done and staged.host.data_ptr() == x.data_ptr() and not staged.host.requires_grad


def test_it_is_copied_where_it_is_told_to() -> None:
    x, place = torch.arange(10.0)[::2], torch.empty(5)
    staged = to_host(x, into=place)
    assert staged.done and staged.host is place and torch.equal(place, x)


def test_what_goes_out_is_contiguous() -> None:
    assert to_host(torch.arange(10.0)[::2]).host.is_contiguous()


@needs_cuda
@pytest.mark.parametrize("given", [False, True])
def test_cuda_tensors_come_from_behind_what_computes_them(given: bool) -> None:
    x = torch.zeros(1 << 24, device="cuda")
    for _ in range(200):  # enough to be still computing when the copy is asked for
        x += 1
    staged = to_host(x, into=host_empty(x.shape, x.dtype) if given else None)
    if given:
        x.zero_()
    assert staged.host.is_pinned() and not staged.host.is_cuda
    while not staged.done:
        pass
    assert bool((staged.host == 200).all())
