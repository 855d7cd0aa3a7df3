"""Constructors of edits: `dj.scale(0.9)`, `dj.add(vector, coef=4)`, an array or a number to set."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from djinn_jupyter.client.arrays import from_any
from djinn_jupyter.client.positions import Positions, spell_positions
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire.edits import Add, Clamp, Edit, PatchFrom, ProjectOut, Scale, Set, Zero

if TYPE_CHECKING:
    from djinn_jupyter.client.session import RemoteSession


def scale(factor: float) -> Scale:
    """x * factor"""
    return Scale(factor=float(factor))


def add(vector: object, coef: float = 1.0) -> Add:
    """x + coef * vector. `vector` broadcasts against [positions, features] (or [positions, heads, head features])."""
    return Add(vector=from_any(vector), coef=float(coef))


def set_to(value: object) -> Set:
    """Replace the value: by an array that broadcasts to the selected part, or by a number."""
    return Set(value=from_any(value))


def zero() -> Zero:
    """0"""
    return Zero()


def clamp(low: float | None = None, high: float | None = None) -> Clamp:
    """min(max(x, low), high); None leaves that side open."""
    if low is None and high is None:
        raise InvalidEdit("clamp needs low, high or both.")
    return Clamp(low=None if low is None else float(low), high=None if high is None else float(high))


def project_out(direction: object) -> ProjectOut:
    """x without its component along `direction`, over the last axis."""
    return ProjectOut(direction=from_any(direction))


def patch_from(session: RemoteSession | str, *, site: str | None = None, positions: Positions = None) -> PatchFrom:
    """The value at a site of another session's stopped pass. `positions` count in the source; an open slice is
    refused."""
    name = session if isinstance(session, str) else session.name
    return PatchFrom(session=name, site=site, positions=spell_positions(positions, _no_ends))


def as_edit(value: object) -> Edit:
    """Return an Edit unchanged, and any other value as a Set edit."""
    return value if isinstance(value, get_args(Edit)) else set_to(value)


def _no_ends() -> tuple[int, int]:
    raise InvalidEdit("The source of a patch needs both ends of a slice: write '2:5'.")
