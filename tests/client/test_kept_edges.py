"""Edges and circuits in files: the same bits come back, and are computed again from their recipe alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.circuits.api.edges import Edges
from tests.client import tables
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
    again = tables.made_again(engine, found, tmp_path).again
    for one, other in ((again.by_pair, found.by_pair), (again.exact, found.exact)):
        assert (one is None and other is None) or np.array_equal(one.view("int64"), other.view("int64"))
    assert (again.paired, again.method, again.tokens) == (found.paired, found.method, found.tokens)


def test_a_circuit_comes_back_and_is_run_again_with_the_same_bits(
    engine: RemoteEngine, found: Edges, tmp_path: Path
) -> None:
    circuit = dj.circuit_curve(engine, found, sizes=(0.1, 0.3)).circuits[1]
    again = tables.made_again(engine, circuit, tmp_path).again
    assert (again.edges, again.scores, again.interval) == (circuit.edges, circuit.scores, circuit.interval)
