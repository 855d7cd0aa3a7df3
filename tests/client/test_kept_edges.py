"""Edges and circuits in files: the same bits come back, and are computed again from their recipe alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.api.circuits import Circuit
from djinn_jupyter.methods.circuits.api.edges import Edges
from tests.client.reached import reached
from tests.engine.desk import build_desk, tokens
from tests.families import build

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
METRIC = "logit(17) - logit(42)"


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with reached(build_desk(build("llama", layers=2))) as [made]:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[RemoteEngine]:
    with reached(build_desk(build("llama", layers=2, seed=9))) as [made]:
        yield made


@pytest.fixture(params=("gradients", "steps", "exact", "pairs"))
def found(engine: RemoteEngine, request: pytest.FixtureRequest) -> Edges:
    asked: dict[str, dict[str, Any]] = {
        "gradients": {"top": 3},
        "steps": {"steps": 3},
        "exact": {"method": "exact"},
        "pairs": {"clean": [list(CLEAN), [1, 2]], "corrupted": [list(CORRUPTED), [1, 3]]},
    }
    return dj.edges(engine, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **asked[request.param]})


def test_edges_come_back_and_are_scored_again_with_the_same_bits(
    engine: RemoteEngine, found: Edges, tmp_path: Path
) -> None:
    path = found.save(tmp_path / "fact.edges.djinn")
    kept = Edges.read(path)
    for one, other in ((kept.values, found.values), (kept.by_pair, found.by_pair), (kept.exact, found.exact)):
        assert (one is None and other is None) or np.array_equal(one.view("int64"), other.view("int64"))
    assert (kept.paired, kept.method, kept.tokens) == (found.paired, found.method, found.tokens)
    again = dj.reproduce(engine, path)
    assert again.same
    assert again.lines()[0].startswith("The same bits")
    assert engine.sessions() == ()


def test_a_circuit_comes_back_and_is_run_again_with_the_same_bits(
    engine: RemoteEngine, found: Edges, tmp_path: Path
) -> None:
    circuit = dj.circuit_curve(engine, found, sizes=(0.1, 0.3)).circuits[1]
    kept = Circuit.read(circuit.save(tmp_path / "fact.circuit.djinn"))
    assert (kept.edges, kept.scores, kept.interval) == (circuit.edges, circuit.scores, circuit.interval)
    assert np.array_equal(kept.values.view("int64"), circuit.values.view("int64"))
    assert dj.reproduce(engine, kept).same
    assert repr(kept) == repr(circuit)


def test_another_model_is_named_where_bits_differ(engine: RemoteEngine, other: RemoteEngine) -> None:
    found = dj.edges(engine, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)
    for result in (found, dj.circuit(engine, found, 20)):
        again = dj.reproduce(other, result)
        assert not again.same
        assert again.different
        assert "weights" in {name for name, _, _ in again.origin}


def test_a_file_of_something_else_is_refused(engine: RemoteEngine, tmp_path: Path) -> None:
    found = dj.edges(engine, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)
    path = found.save(tmp_path / "a.edges.djinn")
    path.rename(tmp_path / "a.circuit.djinn")
    with pytest.raises(UsageError, match="circuit"):
        Circuit.read(tmp_path / "a.circuit.djinn")
    data = (tmp_path / "a.circuit.djinn").read_bytes()
    (tmp_path / "b.edges.djinn").write_bytes(data[:-3])
    with pytest.raises(UsageError, match="truncated"):
        dj.reproduce(engine, tmp_path / "b.edges.djinn")
