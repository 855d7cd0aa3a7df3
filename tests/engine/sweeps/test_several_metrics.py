"""Several metrics of one sweep are those of as many sweeps, and one distrusted metric distrusts its cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes.forward import Forward
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.methods.common.engine.lines import LinesAlone
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from tests.engine.desk import Desk, desk_of
from tests.engine.sweeps.test_sweeps import LAYERS, METRIC, A, B, swept, values

THREE = (METRIC, f"prob({A})", f"rank({B}) - rank({A})")


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = desk_of("llama", layers=LAYERS)
    yield desk
    desk.close_all()


def by_metric(reply: Any) -> list[Tensor]:
    return [to_tensor(measured.values) for measured in reply.measured]


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_each_has_what_a_sweep_of_its_own_has(desk: Desk, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [values(swept(desk, metrics=(text,), mode="exact")) for text in THREE]
    ran: list[int] = []
    logits = LinesAlone.logits
    monkeypatch.setattr(LinesAlone, "logits", lambda *asked: ran.append(1) or logits(*asked))
    reply = swept(desk, metrics=THREE, mode=mode)
    assert [measured.metric for measured in reply.measured] == list(THREE)
    for own, others in zip(by_metric(reply), apart, strict=True):
        assert torch.equal(own, others) if mode == "exact" else (own - others).abs().max() < 2e-5
    assert len(ran) == (reply.computed if mode == "exact" else len(reply.rechecked))  # a pass a cell, for all three
    assert reply.measured[1].corrupted == float(values(swept(desk, metrics=THREE[1:2]))[0, 0])


def test_the_head_computes_the_columns_of_all_of_them_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(desk)
    asked: list[Any] = []
    lens = Forward.shared_lens
    monkeypatch.setattr(Forward, "shared_lens", lambda self, *given: asked.append(given[1:]) or lens(self, *given))
    swept(desk, metrics=(METRIC, f"logit({A})", "logit(7)"))
    assert {frozenset(tokens) for (tokens,) in asked} == {frozenset((A, B, 7))}


def test_one_wrong_metric_has_every_cell_computed_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_metric(swept(desk, metrics=THREE, mode="exact"))
    values_of = sweeps.values_of

    def spoiled(*args: Any) -> Any:
        found = yield from values_of(*args)
        return {number: (first, second + 0.5, third) for number, (first, second, third) in found.items()}

    monkeypatch.setattr(sweeps, "values_of", spoiled)
    reply = swept(desk, metrics=THREE)
    assert (reply.mode, reply.rechecked) == ("exact", ())
    assert "differed from the same computed alone by up to 0.5" in reply.notes[-1]
    assert all(map(torch.equal, by_metric(reply), expected))
