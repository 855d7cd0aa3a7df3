"""Pure functions from values to plotly figures with hover text, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from djinn_jupyter.widgets.pictures import Attention, Picture
from djinn_jupyter.widgets.spelling import marked, rounded
from djinn_jupyter.wire.nouns import TopToken
from djinn_jupyter.wire.readings import EffectReading

GREY = "rgb(128,128,128)"  # readable on white and on black
GRID = "rgba(128,128,128,0.25)"
STANDOFF = 14  # pixels between the labels of an axis and its title, which else lies on them
BLUE, ORANGE = "#2e7ad6", "#e06c28"
SERIES = (BLUE, ORANGE, "#2a9d76", "#a06cc0", "#8c8c2c")
DIVERGING = [[0.0, "#2166ac"], [0.25, "#92c5de"], [0.5, "#ffffff"], [0.75, "#f4a582"], [1.0, "#b2182b"]]


def activation(picture: Picture, labels: Sequence[str] | None = None, *, title: str = "") -> go.Figure:
    """Draw positions down, values across; zero is white, full colour from the 99.5th percentile on."""
    block = picture.columns_per_cell
    across = [i * block for i in range(picture.cells.shape[1])]
    down = list(labels[:: picture.rows_per_cell]) if labels else list(range(picture.cells.shape[0]))
    heat = go.Heatmap(z=_short(picture.cells), x=across, y=down, zmin=-picture.limit, zmax=picture.limit,
                      colorscale=DIVERGING, hovertemplate="%{y}, index %{x}: %{z}<extra></extra>",
                      colorbar=_bar())  # fmt: skip
    return _framed(go.Figure(heat), title, "index", "", height=_height(len(down)), downwards=True)


def attention(
    drawn: Attention, heads: Sequence[int], queries: Sequence[str], keys: Sequence[str], *, site: str
) -> go.Figure:
    """Draw a pattern, one head at a time with a menu of the others; the title names the head."""
    across, down = list(keys[:: drawn.columns_per_cell]), list(queries[:: drawn.rows_per_cell])
    maps = [
        go.Heatmap(z=_short(cells), x=across, y=down, zmin=0, zmax=1, visible=i == 0,
                   colorscale="Viridis", hovertemplate="%{y} looks at %{x}: %{z}<extra></extra>", colorbar=_bar())
        for i, cells in enumerate(drawn.cells)
    ]  # fmt: skip
    titles = [f"{site}, head {head}" if len(heads) > 1 or "[" not in site else site for head in heads[: len(maps)]]
    framed = _framed(go.Figure(maps), titles[0], "key", "query", height=_height(len(down)), downwards=True)
    if len(maps) > 1:
        framed.update_layout(updatemenus=[_menu([f"head {head}" for head in heads], titles)], margin={"t": 60})
    return framed


def contributions(values: Sequence[Sequence[float]], columns: Sequence[str], *, title: str) -> go.Figure:
    """Draw positive (red) and negative (blue) contributions of modules or heads: layers down, modules across."""
    limit = max((abs(value) for row in values for value in row), default=0.0) or 1.0
    cells = [[rounded(value) for value in row] for row in values]
    heat = go.Heatmap(z=cells, x=list(columns), y=list(range(len(cells))), zmin=-limit, zmax=limit,
                      colorscale=DIVERGING, hovertemplate="layer %{y}, %{x}: %{z}<extra></extra>",
                      colorbar=_bar())  # fmt: skip
    return _framed(go.Figure(heat), title, "", "layer", height=_height(len(cells)), downwards=True)


def changes(values: Mapping[str, NDArray[np.generic]], rows: Sequence[str], columns: Sequence[str]) -> go.Figure:
    """Draw what edits change, a cell for each place: more is red, less is blue. `values` are by title, which a menu
    chooses from where there are several."""
    titles = list(values)
    heats = [_change(of, rows, columns, visible=number == 0) for number, of in enumerate(values.values())]
    figure = _framed(go.Figure(heats), titles[0], "", "", height=_height(len(rows)), downwards=True)
    if len(titles) > 1:
        figure.update_layout(updatemenus=[_menu(titles, titles)], margin={"t": 60})
    return figure


def _change(values: NDArray[np.generic], rows: Sequence[str], columns: Sequence[str], *, visible: bool) -> go.Heatmap:
    limit = float(np.abs(values).max()) or 1.0
    cells = [[rounded(float(value)) for value in row] for row in values]
    return go.Heatmap(z=cells, x=list(columns), y=list(rows), zmin=-limit, zmax=limit, colorscale=DIVERGING,
                      hovertemplate="%{y}, %{x}: %{z}<extra></extra>", colorbar=_bar(), visible=visible)  # fmt: skip


def _menu(labels: Sequence[str], titles: Sequence[str]) -> dict[str, Any]:
    """Return a menu; each entry shows one picture and its title."""
    rows = [
        {"label": labels[i], "method": "update",
         "args": [{"visible": [i == j for j in range(len(titles))]}, {"title.text": title}]}
        for i, title in enumerate(titles)
    ]  # fmt: skip
    return {"buttons": rows, "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "font": {"color": GREY}}


def by_position(
    values: Sequence[float], positions: Sequence[int], *, measure: str = "norm", title: str = ""
) -> go.Figure:
    line = go.Scatter(x=list(positions), y=[rounded(v) for v in values], mode="lines+markers", line={"color": BLUE})
    return _framed(go.Figure(line), title, "position", measure)


def top_tokens(top: Sequence[TopToken], *, title: str = "") -> go.Figure:
    bars = go.Bar(x=[rounded(t.probability) for t in top], y=[marked(t.text, t.token) for t in top],
                  orientation="h", marker_color=BLUE)  # fmt: skip
    return _framed(go.Figure(bars), title, "probability", "", height=40 + 26 * len(top), downwards=True)


def effect(reading: EffectReading, *, title: str = "") -> go.Figure:
    """Draw the next token's distribution without (grey) and with (orange) the edits."""
    names = [marked(shift.text, shift.token) for shift in reading.shifts]
    befores = [rounded(shift.probability_before) for shift in reading.shifts]
    afters = [rounded(shift.probability_after) for shift in reading.shifts]
    without = go.Bar(name="without", x=names, y=befores, marker_color=GREY)
    with_it = go.Bar(name="with", x=names, y=afters, marker_color=ORANGE)
    return _framed(go.Figure([without, with_it]), title, "", "probability")


def dose_response(
    doses: Sequence[float], series: Mapping[str, Sequence[float]], *, dose: str, response: str, title: str = ""
) -> go.Figure:
    """Draw one line per measure over the strength of an intervention; dose 0 is the unmodified model."""
    lines = [
        go.Scatter(name=name, x=list(doses), y=[rounded(v, 2) for v in values], mode="lines+markers",
                   line={"color": SERIES[i % len(SERIES)]})
        for i, (name, values) in enumerate(series.items())
    ]  # fmt: skip
    return _framed(go.Figure(lines), title, dose, response)


def _framed(figure: go.Figure, title: str, x: str, y: str, *, height: int = 260, downwards: bool = False) -> go.Figure:
    axis: dict[str, Any] = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True}
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 13}, "x": 0.01} if title else None,
        margin={"l": 8, "r": 8, "t": 30 if title else 8, "b": 8},
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "size": 12},
        legend={"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
        xaxis={**axis, "title": {"text": x, "standoff": STANDOFF}},
        yaxis={**axis, "title": {"text": y, "standoff": STANDOFF}, "autorange": "reversed" if downwards else None},
    )
    return figure


def _bar() -> dict[str, Any]:
    return {"thickness": 10, "outlinewidth": 0, "tickfont": {"color": GREY}}


def _height(rows: int) -> int:
    return min(520, 90 + max(8, round(400 / max(rows, 20))) * rows)


def _short(cells: NDArray[np.float32]) -> list[list[float]]:
    """Round cells to three significant digits, as a plain list, so that no dtype or byte order is stored."""
    return [[rounded(float(v)) for v in row] for row in cells]
