"""Checkpoints of a whole job: one file per rank, complete or not there at all.

Layout of a checkpoint folder::

    step-000123/rank0.pt … rank7.pt    each rank's state, written under another name and renamed when on disk
    step-000123/complete               written last, by rank 0; without it the step does not exist

Files are read with ``torch.load(weights_only=True)``: tensors, numbers, strings and plain containers only, so
a checkpoint from elsewhere cannot run code.
"""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gossip import files
from gossip.errors import CheckpointError, WriteError
from gossip.transport.base import Transport

FORMAT = 1
KEEP = 2
"""The newest two are kept: should the last one turn out to be unreadable, there is one more."""


def save(
    folder: Path,
    step: int,
    world: Transport,
    state: Mapping[str, Any],
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Collective: write this rank's `state` as part of the checkpoint of `step`, and drop the older ones.

    Args:
        folder: holds all checkpoints of the run; made if absent.
        step: the same on every rank.
        state: what `load` shall return on this rank: tensors, numbers, strings and containers of them.
        about: small JSON facts that a run must share to load it, e.g. ``{"algorithm": "dcd"}``.

    Returns the checkpoint's folder, once it is complete.

    Raises:
        WriteError: on every rank, if one has no room for it; the older ones are still there.
    """
    here = folder / f"step-{step:06d}"
    if world.rank == 0:
        (here / "complete").unlink(missing_ok=True)  # this step is being written anew
    world.barrier()
    with _together(world), files.writing(here):
        here.mkdir(parents=True, exist_ok=True)
        files.replace(here / f"rank{world.rank}.pt", lambda file: torch.save(dict(state), file))
    keep = None
    with _together(world):
        if world.rank == 0:
            facts = {"format": FORMAT, "step": step, "size": world.size, "about": dict(about or {})}
            files.replace_text(here / "complete", json.dumps(facts, indent=2))
            keep = [path.name for path in _complete(folder, up_to=step)[-KEEP:]]
    _drop_all_but(world.allgather(keep)[0], folder, world)
    return here


@contextmanager
def _together(world: Transport) -> Iterator[None]:
    """Collective: what keeps one rank from writing is an error on all of them."""
    problem = None
    try:
        yield
    except WriteError as error:
        problem = error
    problems = world.allgather(None if problem is None else str(problem))
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text is not None:
            lost = WriteError(f"rank {rank}: {text}")
            lost.second_hand = True
            raise lost


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint in `folder`."""
    found = _complete(folder)
    return found[-1] if found else None


def load(
    folder: Path, world: Transport, about: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]] | None:
    """Collective: step and this rank's state of the newest complete checkpoint; None if there is none.

    Raises:
        CheckpointError: it is damaged, or from another number of ranks or a run whose `about` differs.
    """
    newest = latest(folder) if world.rank == 0 else None
    name = world.allgather(newest and newest.name)[0]
    if name is None:
        return None
    here = folder / name
    facts = world.allgather(_read_facts(here) if world.rank == 0 else None)[0]
    _check(here, facts, world.size, about or {})
    return facts["step"], _read(here / f"rank{world.rank}.pt")


def every_rank(folder: Path) -> tuple[int, int, Iterator[dict[str, Any]]]:
    """Step, number of ranks, and one rank's state after the other, of the newest complete checkpoint.

    For tools outside the job, which need neither MPI nor as many processes.

    Raises:
        CheckpointError: there is none, or it is damaged; a rank's file that is missing, when its turn comes.
    """
    here = latest(folder)
    if here is None:
        raise CheckpointError(f"there is no complete checkpoint in {folder}")
    facts = _read_facts(here)
    _check(here, facts, facts.get("size", 0), {})
    return facts["step"], facts["size"], (_read(here / f"rank{rank}.pt") for rank in range(facts["size"]))


def rng_state(device: torch.device | None = None) -> dict[str, Any]:
    """The states of the global random generators of torch (CPU and `device`), numpy and Python."""
    algorithm, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (str(algorithm), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: Mapping[str, Any], device: torch.device | None = None) -> None:
    """Put back what `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    algorithm, keys, *rest = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _step_of(path: Path) -> int:
    match = re.fullmatch(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1


def _steps(folder: Path) -> list[Path]:
    """All checkpoints in `folder`, complete or not, in the order of their steps."""
    return sorted((p for p in folder.glob("step-*") if _step_of(p) >= 0), key=_step_of)


def _complete(folder: Path, up_to: int | None = None) -> list[Path]:
    complete = (p for p in _steps(folder) if (p / "complete").exists())
    return [p for p in complete if up_to is None or _step_of(p) <= up_to]


def _drop_all_but(keep: list[str], folder: Path, world: Transport) -> None:
    """Remove the other checkpoints, also half-written and later ones that a run gone back over has left."""
    if world.local_rank == 0:
        for path in _steps(folder):
            if path.name not in keep:
                (path / "complete").unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


def _read_facts(here: Path) -> dict[str, Any]:
    try:
        facts = json.loads((here / "complete").read_text())
        facts["size"], facts["step"], facts["about"], facts["format"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        return {"damaged": f"{type(error).__name__}: {error}"}
    return dict(facts)


def _check(here: Path, facts: dict[str, Any], size: int, about: Mapping[str, Any]) -> None:
    if "damaged" in facts:
        raise CheckpointError(f"{here / 'complete'} cannot be read ({facts['damaged']}). {_go_back(here)}")
    if facts["format"] != FORMAT:
        raise CheckpointError(
            f"{here} has format {facts['format']}; this version of gossip reads format {FORMAT}. "
            "Continue the run with the version that wrote it."
        )
    if facts["size"] != size:
        raise CheckpointError(
            f"{here} was written by {facts['size']} ranks and this job has {size}: "
            f"start {facts['size']} ranks (mpirun -n {facts['size']}, or --nodes {facts['size']})"
        )
    for key, value in about.items():
        if facts["about"].get(key) != value:
            raise CheckpointError(
                f"{here} belongs to a run with {key} {facts['about'].get(key)!r}; this one has {value!r}. "
                "Its state does not fit: resume with the same settings, or start a new run."
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        with zipfile.ZipFile(path) as parts:  # torch.load does not look at the checksums that are in the file
            if (damaged := parts.testzip()) is not None:
                raise ValueError(f"wrong checksum of {damaged}")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing. {_go_back(path.parent)}") from None
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of this program: it holds more than tensors and plain values, "
            f"or is damaged ({_first_line(error)}). {_go_back(path.parent)}"
        ) from error
    except Exception as error:  # what torch.load makes of damaged bytes may be any error at all
        raise CheckpointError(
            f"{path} is damaged or was cut short ({_first_line(error)}). {_go_back(path.parent)}"
        ) from error
    return dict(state)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _go_back(here: Path) -> str:
    older = [p for p in _complete(here.parent) if _step_of(p) < _step_of(here)]
    then = f"go on from {older[-1].name}" if older else "start from the beginning"
    return f"To {then}, remove the folder {here} and resume again."
