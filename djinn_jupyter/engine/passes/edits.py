"""Edits of a value: the rows and columns that an edit changes (taken, replaced, named), and the kinds of edits. Knows
neither sessions nor frames.

Shapes: part of a value [n, m, ...]: n selected positions, m selected heads or features (all without a selector).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.engine.system.device import to_home
from djinn_jupyter.errors import InvalidEdit
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
    Scale,
    Set,
    Zero,
    name_of,
)
from djinn_jupyter.wire.readings import at_positions
from djinn_jupyter.wire.request_base import LARGEST_SINGLE
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import label


def rows_of(positions: Sequence[int] | None, available: range) -> list[int] | None:
    """Return the rows of absolute `positions` (negative ones count from the end of the pass); None for all rows."""
    if positions is None:
        return None
    if len(positions) > len(available):
        raise InvalidEdit(f"The stopped pass holds {_spell_positions(available)}, and not {len(positions):,} of them.")
    rows = []
    for position in positions:
        absolute = available.stop + position if position < 0 else position
        if absolute not in available:
            raise InvalidEdit(
                f"Position {position} is not in the stopped pass, which holds "
                f"{_spell_positions(available)}; positions before it are committed. A fork can have their keys or "
                "values edited: %djinn_fork NAME EDIT --site v.N --positions P."
            )
        rows.append(available.index(absolute))
    return rows


def _spell_positions(positions: range) -> str:
    return f"position {positions[0]}" if len(positions) == 1 else f"positions {positions[0]} to {positions[-1]}"


def take(value: Tensor, rows: list[int] | None, selector: tuple[int, ...] | None) -> Tensor:
    """Return a copy of the selected part of a value, [n, m, ...]."""
    part = value if rows is None else value[rows]
    part = part if selector is None else part[:, list(selector)]
    return part.clone() if part.data_ptr() == value.data_ptr() else part


def put(value: Tensor, part: Tensor, rows: list[int] | None, selector: tuple[int, ...] | None) -> Tensor:
    """Return a copy of the value with the selected part replaced."""
    changed = value.clone()
    if selector is None:
        changed[slice(None) if rows is None else rows] = part
    elif rows is None:
        changed[:, list(selector)] = part
    else:
        row_index = torch.tensor(rows, device=value.device)[:, None]
        changed[row_index, torch.tensor(selector, device=value.device)[None, :]] = part
    return changed


@dataclass(frozen=True, slots=True)
class ChangeSizes:
    """|after - before| and |before| in fp32, on the device. As a float it is their quotient, NaN or infinite where
    `before` is zero; that waits for the device."""

    absolute: Tensor
    before: Tensor

    @property
    def relative(self) -> Tensor:
        return self.absolute / self.before

    def __float__(self) -> float:
        return float(self.relative)


def sizes(before: Tensor, after: Tensor) -> ChangeSizes:
    """Measure a change, without waiting for the device."""
    x, y = before.float(), after.float()  # a third of what `to(torch.float32)` takes to find nothing to do
    norm = torch.linalg.vector_norm  # Tensor.norm takes three times as long to get there
    return ChangeSizes(norm(y - x), norm(x))


def all_of(sizes: Sequence[ChangeSizes]) -> tuple[list[float], list[float]]:
    """Return the absolute and the relative sizes of several changes; waits for the device once for each of the two."""
    if not sizes:
        return [], []
    absolute, before = (
        torch.stack(several) for several in zip(*((one.absolute, one.before) for one in sizes), strict=True)
    )
    return absolute.tolist(), (absolute / before).tolist()


def spell_at(words: str, site: Site, positions: Sequence[int] | None) -> str:
    """Return the words of an edit with its place: `zero at z.5[6], position 4`; without positions it is at all."""
    where = "" if positions is None else f", {at_positions(positions)}"
    return f"{words} at {site}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change of a value by an edit (`rule` is None) or a rule; `what` says it in words. `size` is |after - before|
    / |before| of the part it touched, NaN or infinite where |before| was zero: on the device while a pass is running,
    so that nothing waits for it, and a float once the pass has stopped."""

    what: str
    size: ChangeSizes | float
    rule: int | None = None

    def read(self) -> Change:
        """Return the change with its size as a float; waits for the device where the size is still there."""
        return self if isinstance(self.size, float) else replace(self, size=float(self.size))


# The kinds of edits: the arithmetic, the checks and the wording of each, one entry of `KINDS` each. Knows neither sites
# nor sessions. Every number and array of an edit is checked before its kind sees it, by the types of its fields. An
# array arrives as a tensor of the part's dtype that broadcasts to the part, under its field's name; what follows from
# it alone is computed once for all parts of a dtype: a direction in fp32, with its length or as the unit vector.
# Shapes: part of a value [n, m, ...]: n selected positions, m selected heads or features (all without a selector).

AnyEdit = TypeVar("AnyEdit", bound=EditBase)
Value = TypeVar("Value", float, Array)
Compute = Callable[..., Tensor]
Arrays = dict[str, Tensor]
Measure = Callable[[Any, str, Tensor], Arrays]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditKind:
    """`compute` gets the part, the edit and its arrays, and returns the edited part, a new tensor. `measure` derives
    these from the edit and its one array, as wide as the part. `check` raises InvalidEdit for numbers that contradict
    each other; `infinite` numbers are allowed."""

    compute: Compute
    measure: Measure | None
    spell: Callable[[Any], str]
    check: Callable[[Any], None]
    infinite: bool


KINDS: Final[dict[type[EditBase], EditKind]] = {}


def kind_of(
    edit: type[AnyEdit],
    spell: Callable[[AnyEdit], str],
    check: Callable[[AnyEdit], None] = lambda edit: None,
    *,
    infinite: bool = False,
    measure: Measure | None = None,
) -> Callable[[Compute], Compute]:
    """Declare the arithmetic of a kind of edit."""

    def declare(compute: Compute) -> Compute:
        KINDS[edit] = EditKind(compute=compute, measure=measure, spell=spell, check=check, infinite=infinite)
        return compute

    return declare


def _shape_or_number(array: Array) -> str:
    """Return the shape of an array; of a single number, the number."""
    return str(list(array.shape)) if array.shape else format(to_tensor(array).item(), "g")


@kind_of(Scale, lambda edit: f"scale {edit.factor:g}")
def _scaled(part: Tensor, edit: Scale) -> Tensor:
    return part * edit.factor


def _times_coef(edit: Add, name: str, vector: Tensor) -> Arrays:
    return {name: edit.coef * vector}


@kind_of(Add, lambda edit: f"add {_shape_or_number(edit.vector)} x {edit.coef:g}", measure=_times_coef)
def _sum(part: Tensor, edit: Add, vector: Tensor) -> Tensor:
    return part + vector


@kind_of(Set, lambda edit: f"set {_shape_or_number(edit.value)}")
def _replaced(part: Tensor, edit: Set, value: Tensor) -> Tensor:
    return value.expand_as(part).clone()


@kind_of(Zero, lambda edit: "zero")
def _zeroed(part: Tensor, edit: Zero) -> Tensor:
    return torch.zeros_like(part)


def _bounded(edit: Clamp | ProjectionCap) -> None:
    name = "clamp" if isinstance(edit, Clamp) else "projection_cap"
    if edit.low is None and edit.high is None:
        raise InvalidEdit(f"{name} needs a low or a high bound.")
    if edit.low is not None and edit.high is not None and edit.low > edit.high:
        raise InvalidEdit(f"{name} has low {edit.low} above high {edit.high}.")


@kind_of(Clamp, lambda edit: f"clamp {_spell(edit)}", _bounded, infinite=True)
def _clamped(part: Tensor, edit: Clamp) -> Tensor:
    return torch.clamp(part, min=_bound(edit.low, part.dtype), max=_bound(edit.high, part.dtype))


def _bound(number: float | None, dtype: torch.dtype) -> float | None:
    """Return a bound that the dtype can represent: one beyond its range becomes infinite."""
    if number is None or abs(number) <= torch.finfo(dtype).max:
        return number
    return math.copysign(math.inf, number)


def _spell(edit: Clamp | ProjectionCap) -> str:
    return "..".join("" if bound is None else format(bound, "g") for bound in (edit.low, edit.high))


def _directed(edit: ProjectOut | NormMatch | Orthogonal | ProjectionCap) -> None:
    array = edit.vector if isinstance(edit, NormMatch) else edit.direction
    if not bool(to_tensor(array).to(torch.float64).reshape(-1, *array.shape[-1:]).norm(dim=-1).all()):
        raise InvalidEdit(f"{spell(edit)}: the direction is zero.")


def _with_square(edit: EditBase, name: str, direction: Tensor) -> Arrays:
    """Return a direction with |d|^2. Raises InvalidEdit where the part's dtype has made it zero."""
    d = direction.to(torch.float32)
    squared = (d * d).sum(-1, keepdim=True)
    if not bool((squared > 0).all()):
        raise InvalidEdit("The direction is zero in the dtype of the activation.")
    return {name: d, "squared": squared}


def _as_unit(edit: EditBase, name: str, direction: Tensor) -> Arrays:
    """Return the unit vector. Raises InvalidEdit where the part's dtype has made it zero."""
    measured = _with_square(edit, name, direction)
    return {name: measured[name] / measured["squared"].sqrt()}


@kind_of(ProjectOut, lambda edit: "project out", _directed, measure=_with_square)
def _without(part: Tensor, edit: ProjectOut, direction: Tensor, squared: Tensor) -> Tensor:
    """Return part - (part . d) d / |d|^2 along the last axis, computed in fp32."""
    x = part.float()
    return _like(x - (x * direction).sum(-1, keepdim=True) * direction / squared, part)


@kind_of(
    NormMatch,
    lambda edit: f"add {edit.coef:g} of its norm along {list(edit.vector.shape)}",
    _directed,
    measure=_as_unit,
)
def _matched(part: Tensor, edit: NormMatch, vector: Tensor) -> Tensor:
    """Return part + coef |part| u along the last axis, u the unit vector, computed in fp32."""
    x = part.float()
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return _like(x + norm * edit.coef * vector, part)  # a number on the left takes twice as long to get there


@kind_of(Orthogonal, lambda edit: f"component times {edit.coef:g}", _directed, measure=_as_unit)
def _recomposed(part: Tensor, edit: Orthogonal, direction: Tensor) -> Tensor:
    """Return part + (coef - 1) (part . u) u along the last axis, u the unit vector, computed in fp32."""
    x = part.float()
    return _like(x + _along(x, direction) * (edit.coef - 1) * direction, part)


def _capping(edit: ProjectionCap) -> None:
    _bounded(edit)
    _directed(edit)


@kind_of(ProjectionCap, lambda edit: f"cap component {_spell(edit)}", _capping, infinite=True, measure=_as_unit)
def _capped(part: Tensor, edit: ProjectionCap, direction: Tensor) -> Tensor:
    """Return part with part . u between the bounds, u the unit vector, computed in fp32."""
    x = part.float()
    along = _along(x, direction)
    bounded = torch.clamp(along, min=_bound(edit.low, torch.float32), max=_bound(edit.high, torch.float32))
    return _like(x + (bounded - along) * direction, part)


def _along(x: Tensor, unit: Tensor) -> Tensor:
    """Return the component along the unit vector, [..., 1]."""
    component: Tensor = (x * unit).sum(-1, keepdim=True)
    return component


def _like(changed: Tensor, part: Tensor) -> Tensor:
    """Return the edited part, computed in fp32, in the part's dtype."""
    return changed if part.dtype is torch.float32 else changed.to(part.dtype)  # `to` takes 3 us to find nothing to do


@kind_of(PatchFrom, lambda edit: f"patch from {label(edit.session)}" + (f" at {edit.site}" if edit.site else ""))
def _patched(part: Tensor, edit: PatchFrom, source: Tensor | None = None) -> Tensor:
    """Return the value `source` of the other session; a rule has none."""
    if source is None:
        raise InvalidEdit(
            "patch_from takes a value of one stop; a steering rule cannot patch, use add or set with the array."
        )
    if source.shape != part.shape:
        raise InvalidEdit(
            f"patch_from: the source has shape {list(source.shape)}, the selected part {list(part.shape)}; "
            "name as many positions there as here."
        )
    return to_home(source, part.device).to(part.dtype)


# --- the same for every kind -----------------------------------------------------------------------------------------


def arrays_of(edit: Edit, part: Tensor) -> Arrays:
    """Return the arrays of an edit by name, on the device and in the dtype of the part, or measured. Raises InvalidEdit
    where one does not fit."""
    arrays = {
        name: to_tensor(array).to(device=part.device, dtype=part.dtype) for name, array in _fields(edit, Array).items()
    }
    measure = KINDS[type(edit)].measure
    if measure is None:
        return arrays
    ((name, array),) = arrays.items()
    _require_last_axis(array, part, name)
    return measure(edit, name, array.expand(*array.shape[:-1], part.shape[-1]))


def array_bytes(edit: Edit, itemsize: int) -> int:
    """Return the bytes of an edit's arrays, with numbers of this size."""
    return itemsize * sum(math.prod(array.shape) for array in _fields(edit, Array).values())


def compute(part: Tensor, edit: Edit, arrays: Mapping[str, Tensor] | None = None, **given: Tensor) -> Tensor:
    """Return the edited part, in the part's dtype and shape. `arrays` are the edit's, if available already; `given` are
    values that the edit only names."""
    arrays = arrays_of(edit, part) if arrays is None else arrays
    for name, array in arrays.items():
        _require_fit(array, part, name)
    return KINDS[type(edit)].compute(part, edit, **arrays, **given)


def spell(edit: Edit) -> str:
    """Return the edit in words."""
    return KINDS[type(edit)].spell(edit)


def check(edit: Edit, width: int | None, *, heads: int | None = None) -> None:
    """Raise InvalidEdit for errors that are known before the value: `width` is the size of the value's last axis, None
    where it differs from pass to pass, `heads` the size of the axis before it, if known."""
    kind, name = KINDS[type(edit)], name_of(edit)
    for number in _fields(edit, float).values():
        if math.isnan(number) or (abs(number) > LARGEST_SINGLE and not kind.infinite):
            raise InvalidEdit(f"{name}: {number} is not {'a number' if kind.infinite else 'finite in float32'}.")
    for array in _fields(edit, Array).values():
        _check_array(array, width, heads, name)
    kind.check(edit)


def _fields(edit: Edit, kind: type[Value]) -> Mapping[str, Value]:
    return {name: value for name, value in msgspec.structs.asdict(edit).items() if isinstance(value, kind)}


def _check_array(array: Array, width: int | None, heads: int | None, verb: str) -> None:
    if array.shape and width is not None and array.shape[-1] not in (1, width):
        raise InvalidEdit(f"{verb}: the array's last axis has {array.shape[-1]} entries, the site has {width}.")
    if heads is not None and len(array.shape) > 1 and array.shape[-2] not in (1, heads):
        raise InvalidEdit(f"{verb}: the array has {array.shape[-2]} heads, the site has {heads}.")
    if not bool(torch.isfinite(to_tensor(array)).all()):
        raise InvalidEdit(f"{verb}: the array holds NaN or infinity; the activation is left as it was.")


def _require_last_axis(array: Tensor, part: Tensor, what: str) -> None:
    """Raise InvalidEdit unless the array's last axis fits: the others may be rows that are chosen later."""
    if array.ndim:
        _require_fit(array[(0,) * (array.ndim - 1)] if array.numel() else array, part, what)


def _require_fit(array: Tensor, part: Tensor, what: str) -> None:
    if array.ndim == 1 and array.shape[0] in (1, part.shape[-1]):
        return  # most of them, in a fifth of the time
    pairs = zip(reversed(array.shape), reversed(part.shape), strict=False)  # broadcast_shapes takes 30 us
    fits = array.ndim <= part.ndim and all(mine in (1, whole) for mine, whole in pairs)
    if not fits:
        raise InvalidEdit(
            f"The {what} has shape {list(array.shape)}, which does not broadcast "
            f"to the selected part {list(part.shape)}."
        )
