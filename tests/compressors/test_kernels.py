"""Finding the C kernels, doing without them, and that they are as fast as promised by a wide margin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compressors import QSGD, Compressor, Grid, kernels

ROOT = Path(__file__).parents[2]
ENCODE = (
    "import torch; from compressors import QSGD, kernels; print(QSGD().encode(torch.ones(600), 3).sum()); "
)


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture
def without_library(tmp_path: Path) -> Path:
    """A copy of the package in which nothing was compiled."""
    ignore = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "compressors", tmp_path / "compressors", ignore=ignore)
    return tmp_path


def test_without_the_library_torch_does_it_and_says_so_once(without_library: Path) -> None:
    result = python(ENCODE * 2 + "print(kernels.status())", without_library)
    expected = int(QSGD().encode(torch.ones(600), 3).sum())
    assert result.stdout.splitlines() == [f"tensor({expected})"] * 2 + ["torch (the C kernels are not built)"]
    assert result.stderr.count("C compiler") == 1


def test_switched_off_by_the_environment_it_is_silent(without_library: Path) -> None:
    result = python(ENCODE + "print(kernels.status())", without_library, GOSSIP_KERNELS="off")
    assert "torch (GOSSIP_KERNELS=off)" in result.stdout and not result.stderr


def test_a_broken_library_is_not_used(without_library: Path) -> None:
    (without_library / "compressors" / "_kernels.so").write_bytes(b"not a library")
    result = python(ENCODE + "print(kernels.status())", without_library)
    assert "torch (the C kernels do not load" in result.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_of_another_version_is_not_used(without_library: Path) -> None:
    library = without_library / "compressors" / "_kernels.so"
    source = without_library / "old.c"
    source.write_text("int gossip_abi(void) { return 0; } int gossip_job_bytes(void) { return 1; }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    result = python(ENCODE + "print(kernels.status())", without_library)
    assert "another version" in result.stdout and result.stderr.count("another version") == 1


def test_a_process_can_be_told_to_say_nothing(without_library: Path) -> None:
    result = python("from compressors import kernels; kernels.say_nothing(); " + ENCODE, without_library)
    assert result.returncode == 0 and not result.stderr


def test_disabled_nests_and_ends() -> None:
    x = torch.ones(3)
    before = kernels.usable(x)
    with kernels.disabled():
        with kernels.disabled():
            assert not kernels.usable(x)
        assert not kernels.usable(x)
    assert kernels.usable(x) == before == kernels.built()


def test_tensors_that_the_kernels_cannot_take() -> None:
    x = torch.randn(1200, generator=torch.Generator().manual_seed(0))
    assert not kernels.usable(x[::2])
    assert torch.equal(QSGD().encode(x[::2], 1), QSGD().encode(x[::2].contiguous(), 1))


@pytest.mark.skipif(not kernels.built(), reason="the C kernels are not built")
def test_a_fork_can_go_on() -> None:
    """No thread and no lock outlives a call."""
    code = (
        "import os, torch; torch.set_num_threads(4); from compressors import QSGD, kernels; "
        "x = torch.ones(10**6); QSGD().encode(x, 1); pid = os.fork(); "
        "p = QSGD().encode(x, 1); os._exit(0) if pid == 0 else print(os.waitpid(pid, 0)[1])"
    )
    assert python(code, ROOT).stdout.strip() == "0"


@pytest.mark.skipif(not kernels.built(), reason="the C kernels are not built")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's peak memory")
@pytest.mark.parametrize(
    "spec", ["QSGD()", "QSGD(block='tensor')", "Sign()", "Natural()", "Grid()", "TopK(0.001)"]
)
def test_peak_memory(spec: str) -> None:
    """Encode takes the message and a twentieth of the vector; decode_add the latter only."""
    code = f"""
import torch
from compressors import *

def memory(which):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024

def added(action):
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS")
    result = action()
    return result, memory("VmHWM") - before

codec, x = {spec}, torch.randn(8_000_000)
codec.decode_add(codec.encode(x, 1), torch.zeros_like(x))
out = torch.zeros_like(x).add_(1)
payload, taken = added(lambda: codec.encode(x, 1))
_, more = added(lambda: codec.decode_add(payload, out))
assert taken < payload.numel() + 4 * len(x) / 20, taken
assert more < 4 * len(x) / 20, more
"""
    python(code, ROOT)


@pytest.mark.parametrize("codec", [QSGD(), Grid()], ids=str)
def test_vectors_of_another_type_are_left_to_torch(codec: Compressor) -> None:
    """A kernel takes every vector for one of float32."""
    payload = codec.encode(torch.linspace(-1, 1, 600, dtype=torch.float32), 3)
    for dtype in (torch.float64, torch.bfloat16):
        out = torch.ones(1200, dtype=dtype)[:600]
        assert not kernels.usable(out)
        codec.decode_add(payload, out)
        expected = 1 + codec.decode(payload, 600).double()
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)
