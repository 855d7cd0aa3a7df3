"""Cells with a value inside a layer run that layer together, and each has there what it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import sections
from djinn_jupyter.engine.passes.sections import Inside, is_served
from djinn_jupyter.methods.sweep.engine.together import CellLines
from djinn_jupyter.wire.edits import Zero
from tests.engine.desk import Desk, build_desk, desk_of
from tests.engine.sweeps.test_recheck import falls_back
from tests.engine.sweeps.test_sweeps import LAYERS, swept, values
from tests.families import build

HEADS = {"site": "z", "over": ("layer", "head")}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cells whose layer was run alone, but those that edit an attention pattern."""
    cells: list[Any] = []
    behind = CellLines.behind

    def counted(self: Any, edits: Any, edited: Any, layer: int) -> Any:
        cells.extend([edited] if is_served(edited.tap) else [])
        return (yield from behind(self, edits, edited, layer))

    monkeypatch.setattr(CellLines, "behind", counted)
    return cells


@pytest.fixture
def desk() -> Iterator[Desk]:
    """An engine of its own, which has tested no tap yet."""
    desk = build_desk(build("gpt2", layers=LAYERS))
    yield desk
    desk.close_all()


def apart(desk: Desk, **asked: Any) -> float:
    """By how much the cells of a fast sweep differ from those of an exact one."""
    together, exact = (swept(desk, mode=mode, **asked) for mode in ("fast", "exact"))
    assert together.mode == "fast", together.notes
    assert values(exact).std() > 1e-3  # the edit does something
    return float((values(exact) - values(together)).abs().max())


@pytest.mark.parametrize(
    "asked",
    [
        HEADS,
        {"site": "k", "over": ("layer", "head")},
        {"site": "mlp_post.1[*]", "over": ("neuron",), "edit": Zero(), "clean": None},
        {"site": "*.2", "over": ("point", "position"), "positions": (7, 11)},
    ],
    ids=lambda asked: asked["site"],
)
def test_one_cell_of_a_kind_runs_its_layer_alone_and_the_others_run_it_together(
    desk: Desk, alone: list[Any], asked: dict[str, Any]
) -> None:
    assert apart(desk, **asked) < 2e-5
    kinds = {(edited.tap.site.point, type(edited.tap.module)) for edited in alone}
    assert len(alone) == len(kinds)
    before = len(alone)
    swept(desk, **asked)
    assert len(alone) == before  # what was tested once is known


def test_families_that_do_not_pack_run_each_such_layer_alone(alone: list[Any]) -> None:
    desk = desk_of("bloom", layers=LAYERS)
    assert apart(desk, **HEADS) < 2e-5
    assert len(alone) == LAYERS * 4
    desk.close_all()


def test_behind_attention_in_the_last_layer_only_the_last_position_is_computed(desk: Desk) -> None:
    reply = swept(desk, site=f"z.{LAYERS - 1}[*]", over=("head", "position"))
    assert reply.computed == 4
    assert (values(reply)[:, :-1] == reply.measured[0].corrupted).all()


def shifted(values: Any, rows: int) -> Any:
    """Put each line's values into the next line's rows."""
    given = list(values)
    moved = [one for _, one in given[1:] + given[:1]]
    return put([(first, one) for (first, _), one in zip(given, moved, strict=True)], rows)


put = sections.in_place


def test_values_inside_another_line_are_found_by_the_recheck(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = values(swept(desk, mode="exact", **HEADS))
    swept(desk, **HEADS)  # the tap is known to be served: what breaks from here on its test cannot see
    monkeypatch.setattr(sections, "in_place", shifted)
    falls_back(swept(desk, **HEADS), expected)


def test_where_a_line_would_have_anothers_value_every_cell_runs_its_layer_alone(
    desk: Desk, alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "in_place", shifted)
    assert apart(desk, **HEADS) < 2e-5
    assert len(alone) == LAYERS * 4 + 1  # one of them once more, as the test


def test_a_tap_that_has_other_rows_than_were_packed_is_not_served(
    desk: Desk, alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "in_place", lambda values, rows: put(values, rows + 1))
    assert apart(desk, **HEADS) < 2e-5
    assert len(alone) == LAYERS * 4 + 1


def test_a_lines_last_rows_have_the_last_of_its_values() -> None:
    value = torch.arange(6.0).reshape(3, 2)
    last: Tensor = Inside(tap=None, value=value).last(1).value  # type: ignore[arg-type]
    assert torch.equal(last, value[2:])


def test_a_call_of_as_many_rows_as_a_parameter_of_attention_has_values() -> None:
    """Each head has one sink; at the last position there is a row for each head."""
    desk = desk_of("gpt_oss", layers=LAYERS)
    assert apart(desk, site="z.1", over=("head",), edit=Zero(), clean=None, positions=(11,)) < 2e-5
    desk.close_all()
