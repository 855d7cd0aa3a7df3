"""The kinds and the limits of rules, each as a hook that stands in every pass of the plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from djinn_jupyter.wire.edits import (
    Add,
    Clamp,
    Edit,
    NormMatch,
    Orthogonal,
    ProjectionCap,
    ProjectOut,
    Scale,
    Set,
    Zero,
)
from tests.engine.desk import array, tokens
from tests.engine.methods.plain_hooks import Hook, at

LENGTH, NEW = 22, 3  # beyond a window of 8, and beyond 20, where a long rotary begins
PROMPT = tokens(LENGTH)
LAYER = 1
V = torch.randn(32, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(2, 32, generator=torch.Generator().manual_seed(2))


def in_single(change: Callable[[Tensor, Tensor], Tensor]) -> Hook:
    """Compute in fp32 with the unit vector of V as the dtype has it, and round."""

    def changed(raw: Tensor) -> Tensor:
        direction = V.to(raw).float().expand(raw.shape)
        unit = direction / (direction * direction).sum(-1, keepdim=True).sqrt()
        return change(raw.float(), unit).to(raw.dtype)

    return changed


def along(raw: Tensor, unit: Tensor) -> Tensor:
    return (raw * unit).sum(-1, keepdim=True)


def without(raw: Tensor) -> Tensor:
    x, d = raw.float(), V.to(raw).float()
    return (x - (x * d).sum(-1, keepdim=True) * d / (d * d).sum(-1, keepdim=True)).to(raw.dtype)


EDITS: list[tuple[Edit, Hook]] = [
    (Add(vector=array(V), coef=0.5), lambda h: h + 0.5 * V.to(h)),
    (Scale(factor=1.5), lambda h: h * 1.5),
    (Set(value=array(V)), lambda h: V.to(h).expand_as(h)),
    (Zero(), torch.zeros_like),
    (Clamp(low=-0.5, high=0.5), lambda h: h.clamp(-0.5, 0.5)),
    (ProjectOut(direction=array(V)), without),
    (NormMatch(vector=array(V), coef=0.5), in_single(lambda h, u: h + h.norm(dim=-1, keepdim=True) * 0.5 * u)),
    (Orthogonal(direction=array(V), coef=2.5), in_single(lambda h, u: h + along(h, u) * (2.5 - 1) * u)),
    (
        ProjectionCap(direction=array(V), low=-0.1, high=0.1),
        in_single(lambda h, u: h + (along(h, u).clamp(-0.1, 0.1) - along(h, u)) * u),
    ),
]


def fed(change: Callable[[Tensor, range], Tensor]) -> Hook:
    """Tell a hook which positions of the line a pass has."""
    begun = 0

    def changed(raw: Tensor) -> Tensor:
        nonlocal begun
        positions = range(begun, begun + raw.shape[1])
        begun = positions.stop
        return change(raw, positions)

    return changed


def doubled_where(holds: Callable[[int, Tensor], bool]) -> Hook:
    def change(raw: Tensor, positions: range) -> Tensor:
        rows = [row for row, position in enumerate(positions) if holds(position, raw[0, row])]
        return at(rows, lambda all_of_them: all_of_them * 2.0)(raw)

    return fed(change)


def norm(row: Tensor) -> float:
    return float(row.float().norm())


LIMITS: dict[str, tuple[dict[str, Any], Callable[[int, Tensor], bool]]] = {
    "positions": ({"positions": (3, LENGTH + 1)}, lambda position, row: position in (3, LENGTH + 1)),
    "onward": ({"onward": 19}, lambda position, row: position >= 19),
    "onward and positions": (
        {"onward": 19, "positions": (0, 20)},
        lambda position, row: position in (0, *range(19, 40)),
    ),
    "on prompt": ({"on": "prompt"}, lambda position, row: position < LENGTH),
    "on new": ({"on": "new"}, lambda position, row: position >= LENGTH),
    "on new at positions": ({"on": "new", "positions": (LENGTH + 1, 3)}, lambda position, row: position == LENGTH + 1),
    "when and onward": (
        {"when": "position % 2 == 0", "onward": 5},
        lambda position, row: position >= 5 and position % 2 == 0,
    ),
    "when step": ({"when": "step in (0, 2)"}, lambda position, row: position < LENGTH or position == LENGTH + 1),
    "when token": (
        {"when": f"token_id == {PROMPT[4]} or position > 21"},
        lambda position, row: position > 21 or PROMPT[position : position + 1] == (PROMPT[4],),
    ),
}
