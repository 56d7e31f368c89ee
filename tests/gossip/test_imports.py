"""Who may import whom, and that nothing from outside is unpickled. Checked on the source of every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each package may import itself and these; what is not ours counts for the first two, which stay light.
OURS = {
    "topologies": set(),
    "compressors": set(),
    "gossip": {"topologies", "compressors"},
    "experiments": {"gossip", "topologies", "compressors"},
}
LIGHT = {"topologies": {"numpy", "networkx"}, "compressors": {"torch", "numpy"}}

FILES = sorted(path.relative_to(ROOT) for package in OURS for path in (ROOT / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level module of every import, inside functions too; relative ones are of the package."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            own = path.parts[0]
            yield node.lineno, own if node.level else (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_one_way(path: Path) -> None:
    package = path.parts[0]
    for line, module in _imports(path):
        where = f"{path}:{line} imports {module}"
        assert module != "tests", where
        if module in OURS:
            assert module == package or module in OURS[package], where
        elif package in LIGHT and module not in sys.stdlib_module_names:
            assert module in LIGHT[package], where
        if module == "mpi4py":
            assert path == Path("gossip/transport/mpi.py"), where


@pytest.mark.parametrize("path", FILES, ids=str)
def test_nothing_is_unpickled(path: Path) -> None:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "pickle":
            assert not {"load", "loads"} & {alias.name for alias in node.names}, f"{path}:{node.lineno}"
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        called = ast.unparse(node.func)
        keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
        where = f"{path}:{node.lineno}: {ast.unparse(node)}"
        if called == "pickle.loads" and path == Path("gossip/transport/mpi.py"):
            continue  # what another rank of the same job has sent, not a file
        assert called not in ("pickle.load", "pickle.loads", "torch.jit.load"), where
        if called == "torch.load":
            assert keywords.get("weights_only") == "True", where
        if called in ("np.load", "numpy.load"):
            assert keywords.get("allow_pickle", "False") == "False", where


@pytest.mark.parametrize("module", ["gossip", "gossip.__main__", "gossip.cli", "experiments"])
def test_importing_does_not_start_mpi(module: str) -> None:
    code = f"import sys, {module}; sys.exit('mpi4py' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_the_light_packages_load_alone() -> None:
    for package, heavy in (("topologies", "torch"), ("compressors", "topologies")):
        code = f"import sys, {package}; sys.exit({heavy!r} in sys.modules or 'gossip' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("module", ["gossip", "gossip.__main__", "gossip.cli", "experiments.compare"])
def test_what_needs_no_torch_does_not_load_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    import gossip

    assert {*gossip.__all__} <= {*dir(gossip)}
    assert all(getattr(gossip, name).__name__ == name for name in gossip.__all__)
    with pytest.raises(AttributeError, match="no attribute 'joyn'"):
        gossip.joyn  # type: ignore[attr-defined]  # noqa: B018
