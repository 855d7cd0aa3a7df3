"""Apply edits to values. Data in, tensors out: knows neither sessions nor frames.

Shapes: part of a value [n, m, ...]: n selected positions, m selected heads or features (all without a selector).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.edits import Add, Clamp, Edit, PatchFrom, ProjectOut, Scale, Set, Zero
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.positions import at_positions
from djinn_jupyter.wire.sites import Site

Patch = Callable[[PatchFrom, tuple[int, ...] | None], Tensor]


def refuse_patches(edit: PatchFrom, selector: tuple[int, ...] | None) -> Tensor:
    raise InvalidEdit(
        "patch_from takes a value of one stop; a steering rule cannot patch, use add or set with the array."
    )


def rows_of(positions: Sequence[int] | None, available: range) -> list[int] | None:
    """Return the rows of absolute `positions` (negative ones count from the end of the pass); None for all rows."""
    if positions is None:
        return None
    rows = []
    for position in positions:
        absolute = available.stop + position if position < 0 else position
        if absolute not in available:
            raise InvalidEdit(
                f"Position {position} is not in the stopped pass, which holds "
                f"{_spell(available)}; positions before it are committed and no longer change."
            )
        rows.append(available.index(absolute))
    return rows


def _spell(positions: range) -> str:
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


def change(part: Tensor, edit: Edit, selector: tuple[int, ...] | None, patch: Patch) -> Tensor:
    """Return the edited part, in the part's dtype and shape."""
    match edit:
        case Scale(factor=factor):
            return part * factor
        case Add(vector=vector, coef=coef):
            return part + coef * _fitting(vector, part, "vector")
        case Set(value=value):
            return _fitting(value, part, "value").expand_as(part).clone()
        case Zero():
            return torch.zeros_like(part)
        case Clamp(low=low, high=high):
            return _clamped(part, low, high)
        case ProjectOut(direction=direction):
            return _without(part, _fitting(direction, part, "direction"))
        case PatchFrom():
            return _matching(patch(edit, selector), part)


def relative_size(before: Tensor, after: Tensor) -> Tensor:
    """Return |after - before| / |before| in fp32, on the device; NaN or infinite where `before` is zero."""
    x, y = before.to(torch.float32), after.to(torch.float32)
    size: Tensor = (y - x).norm() / x.norm()
    return size


def check(edit: Edit, width: int) -> None:
    """Raise InvalidEdit for what is wrong before the value is known: `width` is the size of the value's last axis."""
    match edit:
        case Scale(factor=number) | Add(coef=number):
            if not torch.isfinite(torch.tensor(number)):
                raise InvalidEdit(f"The number {number} is not finite.")
        case Clamp(low=low, high=high):
            if low is None and high is None:
                raise InvalidEdit("clamp needs a low or a high bound.")
            if any(bound is not None and math.isnan(bound) for bound in (low, high)):
                raise InvalidEdit("clamp: a bound is NaN, which is neither above nor below anything.")
            if low is not None and high is not None and low > high:
                raise InvalidEdit(f"clamp has low {low} above high {high}.")
    array = getattr(edit, {Add: "vector", Set: "value", ProjectOut: "direction"}.get(type(edit), ""), None)
    if array is not None:
        _check_array(array, width, type(edit).__name__.lower())


def _check_array(array: Array, width: int, verb: str) -> None:
    if array.shape and array.shape[-1] not in (1, width):
        raise InvalidEdit(f"{verb}: the array's last axis has {array.shape[-1]} entries, the site has {width}.")
    if not bool(torch.isfinite(to_tensor(array)).all()):
        raise InvalidEdit(f"{verb}: the array holds NaN or infinity; the activation is left as it was.")


def _fitting(array: Array, part: Tensor, what: str) -> Tensor:
    tensor = to_tensor(array).to(device=part.device, dtype=part.dtype)
    try:
        fits = torch.broadcast_shapes(tensor.shape, part.shape) == part.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise InvalidEdit(
            f"The {what} has shape {list(array.shape)}, which does not broadcast "
            f"to the selected part {list(part.shape)}."
        )
    return tensor


def _clamped(part: Tensor, low: float | None, high: float | None) -> Tensor:
    return torch.clamp(part, min=_bound(low, part.dtype), max=_bound(high, part.dtype))


def _bound(number: float | None, dtype: torch.dtype) -> float | None:
    """Return a bound that the dtype can represent: one beyond its range becomes infinite."""
    if number is None or abs(number) <= torch.finfo(dtype).max:
        return number
    return math.copysign(math.inf, number)


def _without(part: Tensor, direction: Tensor) -> Tensor:
    """Return part - (part . d) d / |d|^2 along the last axis, computed in fp32."""
    d = direction.to(torch.float32)
    squared = (d * d).sum(-1, keepdim=True)
    if not bool((squared > 0).all()):
        raise InvalidEdit("project_out: the direction is zero.")
    x = part.to(torch.float32)
    return (x - (x * d).sum(-1, keepdim=True) * d / squared).to(part.dtype)


def _matching(source: Tensor, part: Tensor) -> Tensor:
    if source.shape != part.shape:
        raise InvalidEdit(
            f"patch_from: the source has shape {list(source.shape)}, the selected part {list(part.shape)}; "
            "name as many positions there as here."
        )
    return source.to(device=part.device, dtype=part.dtype)


def spell(edit: Edit) -> str:
    """Return the edit as a person would say it."""
    match edit:
        case Scale(factor=factor):
            return f"scale {factor:g}"
        case Add(vector=vector, coef=coef):
            return f"add {list(vector.shape)} x {coef:g}"
        case Set(value=value):
            return f"set {list(value.shape)}"
        case Zero():
            return "zero"
        case Clamp(low=low, high=high):
            return f"clamp {'' if low is None else format(low, 'g')}..{'' if high is None else format(high, 'g')}"
        case ProjectOut():
            return "project out"
        case PatchFrom(session=session, site=site):
            return f"patch from {label(session)}" + (f" at {site}" if site else "")


def spell_at(edit: Edit, site: Site, positions: Sequence[int] | None) -> str:
    """Return the edit with its place: `zero at z.5[6], position 4`; without positions it applies to every one of a
    pass."""
    where = "" if positions is None else f", {at_positions(positions)}"
    return f"{spell(edit)} at {site}{where}"
