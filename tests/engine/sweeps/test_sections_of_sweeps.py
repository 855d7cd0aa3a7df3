"""Packed calls of a layer are left between its modules, and a sweep has the same cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from djinn_jupyter.engine.passes.packing import Packing
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import Sweep
from tests.engine.desk import build_desk, desk_of
from tests.engine.sweeps.test_sweeps import CLEAN, CORRUPTED, GRID, LAYERS, METRIC, swept, values
from tests.families import build


@pytest.mark.parametrize(("family", "sections"), [("llama", 3), ("mixtral", 2)])
def test_a_sweep_in_sections_has_the_cells_of_an_exact_one(
    family: str, sections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, calls = desk_of(family, layers=LAYERS), list[int]()
    run = Packing.sections

    def counted(self: Any, layer: int, portions: Any, **asked: Any) -> Iterator[Any]:
        calls.append(0)
        for after in run(self, layer, portions, **asked):
            calls[-1] += 1
            parts = [*desk.engine.forward.anatomy.layers[layer].modules()][1:]
            assert not [part for part in parts if "forward" in vars(part)]
            yield after

    swept(desk)  # the family is tried
    monkeypatch.setattr(Packing, "sections", counted)
    fast, exact = (swept(desk, mode=mode) for mode in ("fast", "exact"))
    assert fast.mode == "fast"
    assert (values(exact) - values(fast)).abs().max() < 2e-5
    assert set(calls) == {sections}
    desk.close_all()


def test_a_layer_that_changes_what_a_module_returned_is_found_and_called_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, used = build("llama", layers=LAYERS), list[bool]()
    mlp = model.model.layers[1].mlp
    mlp.forward = lambda rows: mlp.down_proj(mlp.up_proj(rows).mul_(0.5))
    front = Together.front
    monkeypatch.setattr(
        Together,
        "front",
        lambda self, base, plan: used.append(self.packing and self.packing.in_sections) or front(self, base, plan),
    )
    desk = build_desk(model)
    fast, exact = (swept(desk, mode=mode) for mode in ("fast", "exact"))
    assert (fast.mode, used) == ("fast", [False])
    assert (values(exact) - values(fast)).abs().max() < 2e-5
    desk.close_all()


@pytest.mark.parametrize("family", ["llama", "bloom"])  # tried in sections, and at last a start at a time
def test_others_are_answered_between_two_layers_of_the_trial_of_a_family(family: str) -> None:
    desk, replies = build_desk(build(family, layers=LAYERS)), list[Any]()  # an engine that has tried nothing yet
    gates, runs, most = desk.engine.forward.gates, Counter[int](), 0

    def count(number: int) -> None:
        runs.update([number] if gates.hooks is None else [])  # a pass of a line by itself gives way by its own means

    for number, layer in enumerate(desk.engine.anatomy.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: count(number))
    desk.open("a")
    asked: Any = {"corrupted": CORRUPTED, "clean": CLEAN, "site": "resid_post", "over": GRID, "metrics": (METRIC,)}
    desk.post(Sweep(session="a", **asked), replies)
    while not replies:
        desk.engine.tick()
        most = max(most, *runs.values(), 0)
        runs.clear()
    assert replies[0].mode == "fast"
    assert most == 1
    desk.close_all()
