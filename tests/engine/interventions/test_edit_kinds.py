"""Each kind of edit that crosses the wire has its arithmetic in one place; no number or array of it goes unchecked."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
import torch

from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.methods.sweep.request import SweptEdit
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import (
    Add,
    Clamp,
    Edit,
    EditBase,
    NormMatch,
    Orthogonal,
    PatchFrom,
    ProjectionCap,
    ProjectOut,
    Set,
)
from djinn_jupyter.wire.request_base import LARGEST_SINGLE

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
    assert set(EDITS) == set(edits.KINDS)
    assert set(EditBase.__subclasses__()) == set(get_args(SweptEdit)), (
        "the others are of sweeps, which put values for them"
    )


def test_a_number_is_spelled_as_it_is_and_an_array_by_its_shape() -> None:
    assert edits.spell(Set(value=Array.scalar(400.0))) == "set 400"
    assert edits.spell(Set(value=to_array(torch.tensor(0.5, dtype=torch.bfloat16)))) == "set 0.5"
    assert edits.spell(Add(vector=to_array(torch.ones(2, WIDTH)), coef=3.0)) == "add [2, 4] x 3"


@pytest.mark.parametrize("kind", EDITS)
def test_every_kind_is_spelled_checked_and_computed(kind: type[EditBase]) -> None:
    edit, part = example(kind), torch.arange(8.0).reshape(2, WIDTH)
    assert edits.spell(edit)
    edits.check(edit, WIDTH)
    given = {"source": torch.full_like(part, 9)} if kind is PatchFrom else {}
    after = edits.compute(part, edit, **given)
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
            edits.check(example(kind, **{name: to_array(values)}), WIDTH)
    with pytest.raises(InvalidEdit, match=f"The {name} has shape .* does not broadcast"):
        edits.compute(part, example(kind, **{name: to_array(torch.ones(3, WIDTH))}))


@pytest.mark.parametrize(("kind", "name"), of_type(float, float | None))
def test_no_number_escapes_the_checks(kind: type[EditBase], name: str) -> None:
    with pytest.raises(InvalidEdit, match="nan"):
        edits.check(example(kind, **{name: float("nan")}), WIDTH)


@pytest.mark.parametrize("number", [float("inf"), -1e39, 1e300])
@pytest.mark.parametrize(("kind", "name"), of_type(float))
def test_a_factor_that_float32_cannot_hold_is_refused(kind: type[EditBase], name: str, number: float) -> None:
    with pytest.raises(InvalidEdit, match="not finite"):
        edits.check(example(kind, **{name: number}), WIDTH)


def test_the_largest_number_of_the_wire_is_that_of_float32() -> None:
    """The wire does not import torch."""
    assert torch.finfo(torch.float32).max == LARGEST_SINGLE


DIRECTED = [NormMatch, Orthogonal, ProjectionCap, ProjectOut]


@pytest.mark.parametrize("kind", DIRECTED)
@pytest.mark.parametrize("zeros", [torch.zeros(WIDTH), torch.tensor([[1.0] * WIDTH, [0.0] * WIDTH]), torch.tensor(0.0)])
def test_a_direction_without_length_is_refused_when_it_is_set(kind: type[EditBase], zeros: torch.Tensor) -> None:
    name = of_type(Array)[[one for one, _ in of_type(Array)].index(kind)][1]
    with pytest.raises(InvalidEdit, match="the direction is zero"):
        edits.check(example(kind, **{name: to_array(zeros)}), WIDTH)


def test_the_directed_kinds_are_what_their_names_say() -> None:
    part = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(3))
    direction = torch.tensor([0.0, 3.0, 0.0, 0.0])
    along, rest = part[:, 1], part[:, [0, 2, 3]]
    longer = edits.compute(part, NormMatch(vector=to_array(direction), coef=2.0))
    torch.testing.assert_close(longer[:, 1] - along, 2 * part.norm(dim=-1))
    half = edits.compute(part, Orthogonal(direction=to_array(direction), coef=0.5))
    torch.testing.assert_close(half[:, 1], along / 2)
    capped = edits.compute(part, ProjectionCap(direction=to_array(direction), low=None, high=0.1))
    torch.testing.assert_close(capped[:, 1], along.clamp(max=0.1))
    assert all(torch.equal(made[:, [0, 2, 3]], rest) for made in (longer, half, capped))
    assert bool((along > 0.1).any())
    assert bool((along < 0.1).any())


def test_bounds_that_contradict_each_other_are_refused_by_the_name_of_their_kind() -> None:
    for kind, name in ((Clamp, "clamp"), (ProjectionCap, "projection_cap")):
        with pytest.raises(InvalidEdit, match=f"{name} has low 2.0 above high 1.0"):
            edits.check(example(kind, low=2.0, high=1.0), WIDTH)
        with pytest.raises(InvalidEdit, match=f"{name} needs a low or a high bound"):
            edits.check(example(kind, low=None, high=None), WIDTH)
