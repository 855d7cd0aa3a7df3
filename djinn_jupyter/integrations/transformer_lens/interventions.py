"""The interventions that TransformerLens's drivers are given: functions of a value, or the same as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
OPS: Final = ("suppress", "scale", "add", "set")
NEEDED: Final = {"scale": "factor", "add": "value", "set": "value"}


def function_of(name: str, given: Any) -> Function:
    """Return an intervention as a function of the value [lines, positions, ...]. ValueError for one that is none."""
    if callable(given):
        function: Function = given
        return function
    if not isinstance(given, Mapping) or given.get("op") not in OPS:
        raise ValueError(
            f"An intervention at {name!r} is a function or {{'op': one of {', '.join(OPS)}}}, not {given!r}."
        )
    needed = NEEDED.get(given["op"])
    if needed is not None and needed not in given:
        raise ValueError(f"The intervention {given['op']!r} at {name!r} needs {needed!r}.")
    return lambda value: _applied(given, value)


def _applied(spec: Mapping[str, Any], value: Tensor) -> Tensor:
    changed = value.clone()
    chosen = spec.get("pos")
    rows = slice(None) if chosen is None else [chosen] if isinstance(chosen, int) else list(chosen)
    part = changed[:, rows]
    match spec["op"]:
        case "suppress":
            changed[:, rows] = 0
        case "scale":
            changed[:, rows] = part * spec["factor"]
        case "add":
            changed[:, rows] = part + _given(spec, value)
        case "set":
            changed[:, rows] = _given(spec, value).expand_as(part)
    return changed


def _given(spec: Mapping[str, Any], value: Tensor) -> Tensor:
    return torch.as_tensor(spec["value"], dtype=value.dtype)
