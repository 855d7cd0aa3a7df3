"""A small matrix as a table of figures tinted by size: picture and table in one."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.widgets.html import Html, element, table
from djinn_jupyter.widgets.pictures import BELOW, Colour, background
from djinn_jupyter.widgets.spelling import figure, rounded

ROWS, COLUMNS = 48, 24


def matrix(
    corner: object,
    columns: Sequence[object],
    rows: Sequence[tuple[object, Sequence[float | None]]],
    *,
    most: float | None = None,
    digits: int = 2,
    tint: Colour = BELOW,
) -> Html:
    """Return figures under `columns`, each tinted by its share of `most` (by default the largest); None gives an empty
    cell."""
    largest = most or max((rounded(v, digits) for _, values in rows for v in values if v is not None), default=0.0)
    head = [corner, *(element("th", title, scope="col", class_="dj-tint dj-num") for title in columns)]
    made = [[name, *(_cell(value, largest, digits, tint) for value in values)] for name, values in rows]
    return table(head, made, last=True)


def spelled(values: Sequence[float | None], digits: int = 2) -> list[str]:
    """Return the same figures as plain text."""
    return ["" if value is None else figure(value, digits) for value in values]


def _cell(value: float | None, most: float, digits: int, tint: Colour) -> Html:
    if value is None:
        return element("td", "", class_="dj-tint")
    share = rounded(value, digits) / most if most else 0.0
    style = background(tint, max(0.0, min(1.0, share)) * 0.55)
    return element("td", figure(value, digits), class_="dj-tint dj-num", style=style)
