"""Each kind of edit that crosses the wire has its arithmetic in one place; no number or array of it goes unchecked."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
import torch

from djinn_jupyter.engine.interventions import edit_kinds
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Edit, EditBase, PatchFrom

WIDTH = 4
EDITS = get_args(Edit)
EXAMPLES: dict[Any, Any] = {
    float: 0.5,
    float | None: 0.5,
    str: "b",
    str | None: None,
    tuple[int, ...] | None: None,
    Array: to_array(torch.ones(WIDTH)),
}
"""A value for each type that a field of an edit may have: a new type has to be added here and to the checks."""


def example(kind: type[EditBase], **changed: Any) -> Any:
    return kind(**{name: EXAMPLES[of] for name, of in fields(kind).items()} | changed)


def fields(kind: type[EditBase]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def of_type(*types: Any) -> list[tuple[type[EditBase], str]]:
    return [(kind, name) for kind in EDITS for name, of in fields(kind).items() if of in types]


def test_the_wires_list_the_structs_and_the_table_are_the_same() -> None:
    assert set(EDITS) == set(EditBase.__subclasses__()) == set(edit_kinds.KINDS)


@pytest.mark.parametrize("kind", EDITS)
def test_every_kind_is_spelled_checked_and_computed(kind: type[EditBase]) -> None:
    edit, part = example(kind), torch.arange(8.0).reshape(2, WIDTH)
    assert edit_kinds.spell(edit)
    edit_kinds.check(edit, WIDTH)
    given = {"source": torch.full_like(part, 9)} if kind is PatchFrom else {}
    after = edit_kinds.compute(part, edit, **given)
    assert after.shape == part.shape
    assert after.dtype == part.dtype
    assert not torch.equal(after, part)
    assert torch.equal(part, torch.arange(8.0).reshape(2, WIDTH))


@pytest.mark.parametrize(("kind", "name"), of_type(Array))
def test_no_array_escapes_the_checks(kind: type[EditBase], name: str) -> None:
    part = torch.zeros(2, WIDTH)
    for values, wrong in [
        (torch.full((WIDTH,), float("nan")), "NaN or infinity"),
        (torch.full((), float("inf")), "NaN or infinity"),
        (torch.ones(WIDTH + 1), "the site has 4"),
    ]:
        with pytest.raises(InvalidEdit, match=wrong):
            edit_kinds.check(example(kind, **{name: to_array(values)}), WIDTH)
    with pytest.raises(InvalidEdit, match=f"The {name} has shape .* does not broadcast"):
        edit_kinds.compute(part, example(kind, **{name: to_array(torch.ones(3, WIDTH))}))


@pytest.mark.parametrize(("kind", "name"), of_type(float, float | None))
def test_no_number_escapes_the_checks(kind: type[EditBase], name: str) -> None:
    with pytest.raises(InvalidEdit, match="nan"):
        edit_kinds.check(example(kind, **{name: float("nan")}), WIDTH)


@pytest.mark.parametrize("number", [float("inf"), -1e39, 1e300])
@pytest.mark.parametrize(("kind", "name"), of_type(float))
def test_a_factor_that_float32_cannot_hold_is_refused(kind: type[EditBase], name: str, number: float) -> None:
    with pytest.raises(InvalidEdit, match="not finite"):
        edit_kinds.check(example(kind, **{name: number}), WIDTH)
