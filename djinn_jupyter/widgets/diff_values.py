"""The stopped values of two sessions apart: by position, and the place where they are farthest from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from djinn_jupyter.widgets.markup import Html, div, table
from djinn_jupyter.widgets.spelling import figure, plural, rounded, shape
from djinn_jupyter.widgets.theme import meter, part
from djinn_jupyter.widgets.tokens import cell_token
from djinn_jupyter.wire.figures import Apart, Compared
from djinn_jupyter.wire.names import label

TO_EXACT = ".9g"  # a float32 is itself again


class ComparedLine(Protocol):
    """The session that distances are relative to."""

    @property
    def name(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def texts(self) -> Sequence[str]: ...


def values_plain(compared: Compared) -> list[str]:
    """Spell how far the values are apart."""
    apart = compared.apart
    if apart is None or not apart.differing:
        return [f"values at {compared.site}: {said(compared)}"]
    by_position = zip(apart.positions, apart.distances, strict=True)
    distances = ", ".join(f"{position}: {figure(distance, 2)}" for position, distance in by_position)
    return [f"values at {compared.site}: {distances} (relative distance by position)", f"  {said(compared)}"]


def values_part(a: ComparedLine, compared: Compared) -> Html:
    """Draw the distance at each position, and say where it is largest."""
    name, note = f"values at {compared.site}", div("dj-note", said(compared))
    if compared.apart is None or not compared.apart.differing:
        return part(note, name=name)
    return part(_distances(a, compared.apart), note, name=f"distance of the {name}, relative to {label(a.name)}")


def _distances(a: ComparedLine, apart: Apart) -> Html:
    shown = list(zip(apart.positions, apart.distances, strict=True))
    most = max((rounded(distance, 2) for _, distance in shown if distance), default=0.0) or 1.0
    rows = [
        [p, cell_token(a.texts[p], a.tokens[p]), figure(distance, 2), meter(_drawn(distance, most), "dj-changed")]
        for p, distance in shown
    ]
    return table(["position", "token", "distance", ""], rows, numeric=(0, 2))


def _drawn(distance: float | None, most: float) -> float:
    return rounded(distance or 0.0, 2) / most


def said(compared: Compared) -> str:
    """Say in words how many numbers differ and which the most, or for which reason none were compared."""
    apart, (one, other) = compared.apart, compared.dtypes
    if apart is None:
        a, b = compared.shapes
        why = "the passes have no position in common" if a[1:] == b[1:] else "their positions have other shapes"
        return f"not compared, {shape(a)} and {shape(b)}: {why}"
    of = plural(apart.numbers, "number") + ("" if one == other else f" ({one} and {other})")
    if not apart.differing:
        return f"all {of} are equal"
    parts = [f"{apart.differing:,} of {of} differ"]
    if apart.largest is not None:
        parts.append(_largest(apart))
    if apart.not_finite:
        parts.append(f"{apart.not_finite:,} of them are not finite on one side, and in no distance")
    return "; ".join(parts)


def _largest(apart: Apart) -> str:
    assert apart.largest is not None
    found = apart.largest
    place = ", ".join(map(str, found.index))
    at = f"position {found.position}" + (f", index [{place}]" if place else "")
    return f"the most by {found.difference:{TO_EXACT}}, at {at}: {found.a:{TO_EXACT}} and {found.b:{TO_EXACT}}"
