"""What every registered method must be: described, hashable, printable as a spec, and what it declares."""

from __future__ import annotations

import dataclasses
import pickle
import warnings

import pytest

from gossip.algorithms import ALGORITHMS, ParameterMethod
from gossip.spec import make_algorithm
from tests.quadratics import simulate


@pytest.mark.parametrize("name", ALGORITHMS)
def test_spec_round_trip(name: str) -> None:
    method = make_algorithm(name)
    assert make_algorithm(str(method)) == method
    assert pickle.loads(pickle.dumps(method)) == method
    assert hash(method) == hash(make_algorithm(name))


@pytest.mark.parametrize("name", [n for n, cls in ALGORITHMS.items() if issubclass(cls, ParameterMethod)])
def test_options_survive_the_spec(name: str) -> None:
    method = dataclasses.replace(make_algorithm(name), every=4)  # type: ignore[call-arg]
    assert "every=4" in str(method)
    assert make_algorithm(str(method)) == method


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_has_a_line_of_help(name: str) -> None:
    cls = ALGORITHMS[name]
    assert cls.kind in ("parameter", "gradient")
    assert cls.__doc__
    assert len(cls.__doc__.strip().splitlines()[0]) <= 100
    assert all(field.metadata.get("help") for field in dataclasses.fields(cls) if field.init)


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if not cls.uses_compressor])
def test_exact_methods_never_touch_the_codec(name: str) -> None:
    assert simulate(name, 3, "sign", steps=3).log == {}


@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls.uses_compressor])
def test_others_send_everything_through_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `naive`
        assert len(simulate(name, 3, steps=3).log) >= 3 * 3
