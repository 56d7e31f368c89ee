"""Codecs run twice: by the C kernels and by torch alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compressors import kernels


@pytest.fixture(params=["kernels", "torch"])
def either_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with the C kernels, and once more without them."""
    if request.param == "torch":
        with kernels.disabled():
            yield
    elif not kernels.built():
        pytest.skip(kernels.status())
    else:
        yield
