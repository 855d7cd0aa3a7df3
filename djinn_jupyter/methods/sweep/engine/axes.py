"""The axes of sweeps. Each is declared once: which part of an edit it divides, its places, and what each has of that
part. Cells, estimates and refusals read it here; its name stands in `Axis`, for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.engine.alignment import SweptLine
from djinn_jupyter.methods.sweep.engine.patterns import SitePattern
from djinn_jupyter.methods.sweep.request import Axis, Place

Part = Literal["point", "layer", "row", "unit", "coef"]  # of an edit: a unit is a head or a neuron
Elements = tuple[Any, ...]  # of a part: names of points, numbers of layers, rows and units, coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptSite:
    """Values that an axis divides: the taps of a site, by point and layer, the rows of a line, and coefficients."""

    pattern: SitePattern
    taps: Mapping[tuple[str, int], Tap]
    line: SweptLine
    rows: tuple[int, ...]
    coefs: tuple[float, ...]

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point for point, _ in self.taps))

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(layer for _, layer in self.taps))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAxis:
    """An axis divides a `part` of an edit into `places`, each of which has some `elements` of it: by default one, which
    is its name. A cell of a `windowed` axis can take the places after its own too; pairs of cells are of axes that are
    `paired`."""

    part: Part
    places: Callable[[SweptSite], Sequence[Place]]
    elements: Callable[[SweptSite, Place], Elements] = lambda of, place: (place,)
    windowed: bool = False
    paired: bool = True


def _heads(of: SweptSite) -> Sequence[Place]:
    return _units(of, "heads", "heads in every layer, as z has", lambda tap: tap.heads)


def _neurons(of: SweptSite) -> Sequence[Place]:
    without = "features without heads, as mlp_post has"
    return _units(of, "neurons", without, lambda tap: None if tap.heads else tap.width)


def _units(of: SweptSite, what: str, such: str, count: Callable[[Tap], int | None]) -> Sequence[Place]:
    """Return the units of a site that has equally many everywhere. Raises UsageError."""
    found = set(map(count, of.taps.values()))
    if len(found) > 1 or None in found or of.pattern.units is not None:
        raise UsageError(f"A sweep over {what} needs a site that has {such}; {of.pattern} not.")
    return range(found.pop() or 0)


AXES: Final[Mapping[Axis, DeclaredAxis]] = {
    "point": DeclaredAxis(part="point", places=lambda of: of.points, paired=False),
    "layer": DeclaredAxis(part="layer", places=lambda of: of.layers, windowed=True),
    "position": DeclaredAxis(part="row", places=lambda of: of.rows, windowed=True),
    "head": DeclaredAxis(part="unit", places=_heads),
    "neuron": DeclaredAxis(part="unit", places=_neurons),
    "coef": DeclaredAxis(part="coef", places=lambda of: of.coefs, paired=False),
}


def divided(over: Sequence[Axis]) -> dict[Part, Axis]:
    """Return which axis divides each part that is divided. Raises UsageError where two divide one."""
    found: dict[Part, Axis] = {}
    for axis in over:
        other = found.setdefault(AXES[axis].part, axis)
        if other != axis:
            one, two = sorted((other, axis))
            raise UsageError(f"A site has {one}s or {two}s; sweep over one of them.")
    return found


def named(axes: Sequence[Axis], last: str) -> str:
    """Return what several axes divide, in a sentence, with the word `last` before the last one."""
    *most, end = [f"{axis}s" for axis in axes]
    return f"{', '.join(most)} {last} {end}"
