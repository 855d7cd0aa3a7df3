"""A proof is shared by engines of the same model only: what differs in weights, code or options is tested anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from djinn_jupyter.engine.process import build as startup
from djinn_jupyter.errors import ModelRefused
from tests.engine import proofs
from tests.engine.desk import build_desk
from tests.engine.variants import in_place, nondeterministic
from tests.families import build


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Names of the models that were really tested, in order; one of them a tiny Llama."""
    tested: list[Any] = []
    prove = startup.prove
    monkeypatch.setattr(startup, "prove", lambda engine: tested.append(engine.model) or prove(engine))
    monkeypatch.setattr(proofs, "PROOFS", {})
    build_desk(build("llama", layers=2))
    return tested


def test_the_next_engine_of_a_model_has_the_proof_of_the_first(proven: list[Any]) -> None:
    desk = build_desk(build("llama", layers=2))
    assert len(proven) == 1
    assert {check.name for check in desk.engine.description.checks} > {"forward is deterministic"}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda: build("llama", seed=1, layers=2), {}),
        (lambda: in_place(build("llama", layers=2)), {}),
        (lambda: build("llama", layers=2, attention="eager"), {}),
        (lambda: build("llama", layers=2), {"page_positions": 32}),
    ],
    ids=["weights", "code", "attention", "options"],
)
def test_a_model_that_differs_is_tested_anew(
    proven: list[Any], change: Callable[[], Any], options: dict[str, Any]
) -> None:
    build_desk(change(), **options)
    assert len(proven) == 2


def test_a_broken_model_is_refused_beside_one_that_was_proven(proven: list[Any]) -> None:
    with pytest.raises(ModelRefused, match="self-test failed at"):
        build_desk(nondeterministic(build("llama", layers=5)))
    assert len(proven) == 2
