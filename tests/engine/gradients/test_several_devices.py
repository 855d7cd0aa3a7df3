"""Gradients and patched edges of a model on several devices are refused in a sentence, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.sweep.request import Estimate, Sweep
from tests.engine.desk import Desk, build_desk, tokens
from tests.families import build
from tests.homes import DEVICES, two_homes

LINE = tokens(6)
CLEAN = (*LINE[:3], *tokens(6, seed=2)[3:])
LINES = {"corrupted": LINE, "clean": CLEAN}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with pytest.MonkeyPatch.context() as monkeypatch, two_homes(monkeypatch):
        made = build_desk(build("llama", layers=2), devices=DEVICES, device_memory=8 << 20)
        yield made
        made.close_all()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda name: AttributeEdges(session=name, metric="logit(3)", **LINES), "gives no gradients"),
        (lambda name: AttributeEdges(session=name, metric="logit(3)", method="exact", **LINES), "not patched"),
        (lambda name: RunCircuits(session=name, metric="logit(3)", circuits=((),), **LINES), "not patched"),
        (
            lambda name: Sweep(
                session=name, site="z", over=("layer", "head"), metrics=("logit(3)",), estimate=Estimate(), **LINES
            ),
            "gives no gradients",
        ),
    ],
    ids=("edges", "exact edges", "circuits", "attribution"),
)
def test_what_needs_one_device_says_so(desk: Desk, asked: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}: its layers lie on several devices"):
        desk.ask(asked(desk.open()))
    assert desk.engine.budget.held()["edges"] == desk.engine.budget.held()["sweeps"] == 0
