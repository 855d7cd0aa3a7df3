"""Charts as plotly figures, readable on light and dark pages. Texts are literal: plotly would read tags, entities,
formulas and variables in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from djinn_jupyter.widgets.panels import (
    SERIES,
    SIDE,
    TITLE,
    WORD,
    Bars,
    Box,
    Heatmap,
    Lines,
    Network,
    Panel,
    Scale,
    cut,
)
from djinn_jupyter.widgets.spelling import rounded

GREY: Final = "rgb(128,128,128)"  # readable on white and on black
GRID: Final = "rgba(128,128,128,0.25)"
CLEAR: Final = "rgba(0,0,0,0)"
STANDOFF: Final = 14  # pixels between the labels of an axis and its title, which else lies on them
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")  # colour is never the only difference
DIGITS: Final = 4
LEAST, MOST = 12, 28  # pixels on a side of a cell
TALLEST: Final = 640
BESIDE, LETTER = 160, 8  # pixels of the names and the colour bar beside a picture, and of a letter of its labels
BARE: Final = 24  # pixels above a figure without a title, for the legend and plotly's buttons
FRAME: Final = {
    "template": "none",
    "margin": {"l": 8, "r": 8, "t": 46, "b": 8},
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"color": GREY, "size": 12},
    "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 1, "xanchor": "right"},
}


def drawn(panels: Sequence[Panel]) -> go.Figure:
    """Return a figure of the first panel, with a menu of the others."""
    traces = [_traces(panel) for panel in panels]
    figure = go.Figure([trace for of_panel in traces for trace in of_panel])
    layouts = [_layout(panel) for panel in panels]
    figure.update_layout(FRAME | layouts[0])
    if not panels[0].title:
        figure.update_layout(margin={"t": BARE})
    if len(panels) > 1:
        owners = [number for number, of_panel in enumerate(traces) for _ in of_panel]
        figure.update_layout(updatemenus=[_menu(layouts, owners)], margin={"t": 60})
        for trace, owner in zip(figure.data, owners, strict=True):
            trace.visible = owner == 0
    return figure


def literal(text: object, most: int | None = None) -> str:
    """Return a text that plotly shows as it is: without tags, entities, formulas and fields of a template."""
    shown = cut(str(text)) if most is None else cut(str(text), most)
    return escape(shown, quote=False).replace("$", "&#36;").replace("%{", "&#37;{")


def distinct(labels: Iterable[object]) -> list[str]:
    """Return labels as places of an axis, on which equal ones would be one place: with numbers where some are equal."""
    shown = [literal(label) for label in labels]
    return shown if len(set(shown)) == len(shown) else [f"{at} {label}" for at, label in enumerate(shown)]


@singledispatch
def _traces(panel: Any) -> list[Any]:
    raise TypeError(type(panel))


@_traces.register
def _(panel: Heatmap) -> list[Any]:
    low, high = panel.bounds
    said = "<b>%{z}</b>" if panel.low is None else "<b>%{z}</b>, %{customdata[0]} to %{customdata[1]}"
    words = {} if panel.words is None else {
        "text": [[literal(word, WORD) for word in row] for row in panel.words], "texttemplate": "%{text}",
        "hovertext": [[literal(word) for word in row] for row in panel.words], "textfont": {"size": 10},
    }  # fmt: skip
    shown = "%{hovertext}<br>" if words else ""
    return [go.Heatmap(
        z=_numbers(panel.cells), x=distinct(panel.columns), y=distinct(panel.rows), zmin=low, zmax=high,
        colorscale=_scale(panel.scale), customdata=_interval(panel), hoverongaps=False, xgap=1, ygap=1,
        hovertemplate=f"{shown}{_named(panel.down)}%{{y}}, {_named(panel.across)}%{{x}}<br>"
        f"{literal(panel.measure, TITLE)}: {said}<extra></extra>",
        colorbar={"thickness": 10, "outlinewidth": 0, "tickfont": {"color": GREY},
                  "title": {"text": literal(panel.measure, SIDE), "side": "right"}},
        **words,
    )]  # fmt: skip


@_traces.register
def _(panel: Lines) -> list[Any]:
    return [trace for number, name in enumerate(panel.series) for trace in _line(panel, name, number)]


def _line(panel: Lines, name: str, number: int) -> list[Any]:
    """Return a line, and a band for its interval behind it."""
    ink = SERIES[number % len(SERIES)]
    line = go.Scatter(name=literal(name, TITLE), x=list(panel.places), y=_row(panel.series[name]), mode="lines+markers",
                      line={"color": ink, "dash": DASHES[number % len(DASHES)]})  # fmt: skip
    if panel.low is None or panel.high is None or name not in panel.low:
        return [line]
    around = [*panel.places, *reversed(panel.places)]
    band = go.Scatter(x=around, y=_row([*panel.high[name], *reversed(panel.low[name])]), fill="toself", fillcolor=ink,
                      mode="lines", opacity=0.2, line={"width": 0}, hoverinfo="skip", showlegend=False)  # fmt: skip
    return [band, line]


@_traces.register
def _(panel: Bars) -> list[Any]:
    names = distinct(panel.names)
    return [
        go.Bar(name=literal(name, TITLE), x=_row(values), y=names, orientation="h",
               marker_color=SERIES[number % len(SERIES)])
        for number, (name, values) in enumerate(panel.series.items())
    ]  # fmt: skip


@_traces.register
def _(panel: Network) -> list[Any]:
    """Return what the pointer finds: the names of the boxes, and the middle of each edge."""
    ends = [edge.steps[len(edge.steps) // 2][1][0] for edge in panel.edges]
    x = [box.x for box in panel.boxes] + [at for at, _ in ends]
    y = [box.y + box.height / 2 for box in panel.boxes] + [at for _, at in ends]
    names = [literal(box.name, TITLE) for box in panel.boxes]
    names += [f"{literal(edge.name, TITLE)}: {rounded(edge.score, DIGITS)}" for edge in panel.edges]
    return [go.Scatter(x=x, y=y, text=names, mode="markers", marker={"size": 14, "color": CLEAR}, hoverinfo="text")]


def _drawn_graph(panel: Network) -> dict[str, Any]:
    """Return the shapes of a graph and of its legend, and the axes under them, which do not show."""
    drawn = panel.drawn
    edges = [
        {"type": "path", "path": edge.path, "opacity": 0.8,
         "line": {"color": ink, "width": 1 + 5 * share, "dash": DASHES[edge.dash]}}
        for edge in drawn.edges for ink, share in [panel.ink(edge)]
    ]  # fmt: skip
    dashes = {True: "3px,2px", False: "solid"}
    boxes = [
        {"type": "path", "path": _outline(box), "fillcolor": GRID,
         "line": {"color": GREY, "width": box.outline.width, "dash": dashes[box.outline.dashed]}}
        for box in drawn.boxes
    ]  # fmt: skip
    plain = {"showarrow": False, "font": {"size": 11}}
    names = [{"x": box.x, "y": box.y + box.height / 2, "text": literal(box.name), **plain} for box in panel.boxes]
    names += [{"x": x, "y": y, "text": literal(said, TITLE), "xanchor": "left", **plain} for said, x, y in drawn.texts]
    hidden = {"visible": False, "constrain": "domain"}
    return {
        "shapes": edges + boxes,
        "annotations": names,
        "height": round(drawn.height) + 60,
        "xaxis": {**hidden, "range": [0, drawn.width]},
        "yaxis": {**hidden, "range": [drawn.height, 0], "scaleanchor": "x"},
    }


def _outline(box: Box) -> str:
    """Return the outline of a box, with round corners, as a path of absolute M, L and Q."""
    left, right, top, base, r = box.x - box.width / 2, box.x + box.width / 2, box.y, box.y + box.height, box.radius
    return (
        f"M{left + r},{top}L{right - r},{top}Q{right},{top} {right},{top + r}L{right},{base - r}"
        f"Q{right},{base} {right - r},{base}L{left + r},{base}Q{left},{base} {left},{base - r}"
        f"L{left},{top + r}Q{left},{top} {left + r},{top}Z"
    )


def _interval(panel: Heatmap) -> Any:
    if panel.low is None or panel.high is None:
        return None
    rows = zip(panel.low, panel.high, strict=True)
    return [[_row(pair) for pair in zip(lows, highs, strict=True)] for lows, highs in rows]


def _layout(panel: Panel) -> dict[str, Any]:
    """Return what the layout of a figure has of this panel, by the same keys for all panels."""
    title = {"text": literal(panel.title, TITLE), "font": {"size": 13}, "x": 0.01}
    return {"title": title, "shapes": [], "annotations": []} | (
        _drawn_graph(panel) if isinstance(panel, Network) else {"height": _height(panel), **_axes(panel)}
    )


def _axes(panel: Heatmap | Lines | Bars) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True}
    down = {"type": "category", "autorange": "reversed"}
    match panel:
        case Heatmap():
            bare = {**axis, "showgrid": False}
            across, square = ({"constrain": "domain"}, {"scaleanchor": "x"}) if panel.is_square else ({}, {})
            return {"xaxis": {**bare, "type": "category", **across, "title": _title(panel.across)},
                    "yaxis": {**bare, **down, **across, **square, "title": _title(panel.down)}}  # fmt: skip
        case Lines():
            return {"xaxis": {**axis, "title": _title(panel.across)}, "yaxis": {**axis, "title": _title(panel.measure)}}
        case Bars():
            return {"xaxis": {**axis, "title": _title(panel.measure)}, "yaxis": {**axis, **down, "title": _title("")}}


def _title(text: str) -> dict[str, Any]:
    return {"text": literal(text, TITLE), "standoff": STANDOFF}


def width(panel: Panel) -> int | None:
    """Return the pixels across that cells which stay squares need, with their labels; None for what grows."""
    if not isinstance(panel, Heatmap) or not panel.is_square:
        return None
    labels = max(len(literal(row)) for row in panel.rows)
    cells: int = panel.cells.shape[1]
    return BESIDE + LETTER * labels + _cell(panel) * cells


def _cell(panel: Heatmap) -> int:
    """Return the pixels on a side of a cell that is a square."""
    across: int = panel.cells.shape[1]
    return max(LEAST, min(MOST, 640 // max(across, 1)))


def _height(panel: Heatmap | Lines | Bars) -> int:
    if isinstance(panel, Lines):
        return 260
    if isinstance(panel, Bars):
        return min(TALLEST, 70 + 26 * len(panel.names))
    rows = len(panel.cells)
    cell = _cell(panel) if panel.is_square else max(3, 400 // max(rows, 20))
    return int(min(TALLEST, 120 + cell * rows))


def _menu(layouts: Sequence[dict[str, Any]], owners: Sequence[int]) -> dict[str, Any]:
    """Return a menu; each entry shows the traces of one panel, and what its layout has of its own."""
    own = [key for key in layouts[0] if any(one[key] != layouts[0][key] for one in layouts)] or ["title"]
    rows = [
        {"label": one["title"]["text"], "method": "update",
         "args": [{"visible": [owner == number for owner in owners]}, {key: one[key] for key in own}]}
        for number, one in enumerate(layouts)
    ]  # fmt: skip
    return {"buttons": rows, "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "font": {"color": GREY}}


def _scale(scale: Scale) -> list[list[Any]]:
    return [[at, f"rgba({red},{green},{blue},{opacity:g})"] for at, (red, green, blue), opacity in scale]


def _named(axis: str) -> str:
    return f"{literal(axis)} " if axis else ""


def _numbers(cells: NDArray[np.generic]) -> list[list[float | None]]:
    """Return cells as plain lists, so that no dtype or byte order is stored."""
    return [_row(row) for row in np.asarray(cells, dtype=np.float64)]


def _row(values: Iterable[float]) -> list[float | None]:
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | None:
    return rounded(value, DIGITS) if math.isfinite(value) else None
