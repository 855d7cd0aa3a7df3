"""Charts drawn by matplotlib, at the size and with the letters of a paper. Texts are literal: matplotlib would read
formulas between dollar signs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from threading import RLock
from typing import Any, BinaryIO, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from djinn_jupyter.errors import UsageError
from djinn_jupyter.widgets.panels import (
    MADE_BY,
    SERIES,
    SIDE,
    TITLE,
    WORD,
    Bars,
    Heatmap,
    Lines,
    Network,
    Panel,
    Scale,
    cut,
)

WIDTH: Final = 5.5  # inches: the text of a page of most conferences
FLAT: Final = 2  # letters of a label that fit across a cell
CELL: Final = 0.16  # inches on a side of a cell, where there is room
SHORTEST: Final = 1.6  # inches
ACROSS: Final = 3  # pictures beside each other on a page
TICKS: Final = 40  # labels of an axis
CODES: Final = {"M": Path.MOVETO, "C": Path.CURVE4, "V": Path.LINETO}
DASHES: Final = ("-", "--", ":", "-.", (0, (8, 2)))
STYLE: Final[Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 110,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # letters as letters, as most publishers ask
    "svg.hashsalt": "djinn",  # the same file of the same numbers
}
METADATA: Final[dict[str, Any]] = {
    "pdf": {"Creator": MADE_BY, "CreationDate": None},
    "svg": {"Creator": MADE_BY, "Date": None},
    "png": {"Software": MADE_BY},
}
LUMA: Final = np.array([0.299, 0.587, 0.114])  # how light red, green and blue are (ITU-R BT.601)
LITERAL: Final[Any] = {"parse_math": False}
ALONE: Final = RLock()  # matplotlib's settings belong to the process: of two threads each would restore the other's


def plotted(panels: Sequence[Panel], ax: Any = None) -> Any:
    """Draw panels into Axes, by default into those of a new figure that pyplot shows; return the Axes, an array of them
    for several panels. UsageError where there are fewer Axes than panels."""
    if ax is None:
        from matplotlib import pyplot

        with _styled(panels):
            given = _axes(pyplot.figure(figsize=_size(panels), layout="constrained"), len(panels))
    else:
        given = np.asarray(ax, dtype=object).reshape(-1)
    if len(given) < len(panels):
        names = ", ".join(cut(panel.title) for panel in panels[:8])
        raise UsageError(f"These are {len(panels)} pictures ({names}), and {len(given)} Axes: give as many, or none.")
    with _styled(panels):
        for panel, one in zip(panels, given, strict=False):
            _draw(panel, one)
        _scales(panels, given)
    return given[0] if len(panels) == 1 else given


@contextmanager
def _styled(panels: Sequence[Panel]) -> Iterator[None]:
    """Draw in our style, in one thread at a time."""
    small = {"font.size": 5, "axes.titlesize": 6, "xtick.labelsize": 4, "ytick.labelsize": 4}
    with ALONE, mpl.rc_context(STYLE | (small if len(panels) > 1 else {})):
        yield


def _scales(panels: Sequence[Panel], axes: Sequence[Axes]) -> None:
    """Draw the scale of each heatmap, or one for all where it is the same."""
    maps = [(panel, ax) for panel, ax in zip(panels, axes, strict=False) if isinstance(panel, Heatmap)]
    if len({(tuple(panel.rows), tuple(panel.columns)) for panel, _ in maps}) == 1 and len(maps) > 1:
        for _, ax in maps:
            ax.label_outer()
    same = len({(panel.bounds, panel.measure) for panel, _ in maps}) == 1
    for panel, ax in maps[:1] if same else maps:
        beside = [one for _, one in maps] if same and len(maps) > 1 else ax
        bar = ax.figure.colorbar(ax.images[-1], ax=beside, fraction=0.046, pad=0.03)
        bar.outline.set_visible(False)
        bar.set_label(cut(panel.measure, SIDE), **LITERAL)


def write(panels: Sequence[Panel], file: BinaryIO, ending: str) -> None:
    """Write a picture of all panels. The same numbers make the same bytes."""
    with _styled(panels):
        figure = Figure(figsize=_size(panels), layout="constrained")
        FigureCanvasAgg(figure)
        plotted(panels, _axes(figure, len(panels)))
        figure.savefig(file, format=ending, metadata=METADATA[ending])


def _axes(figure: Figure, count: int) -> Any:
    """Return Axes for so many pictures; those that none needs are taken away."""
    across = min(count, ACROSS)
    made = np.asarray(figure.subplots(-(-count // across), across, squeeze=False)).reshape(-1)
    for spare in made[count:]:
        spare.remove()
    return made[:count]


def _size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the width and height of a page's picture, in inches."""
    across = min(len(panels), ACROSS)
    height = max(_height(panel, WIDTH / across) for panel in panels)
    return WIDTH, height * -(-len(panels) // across)


def _height(panel: Panel, width: float) -> float:
    if isinstance(panel, Lines):
        return 2.2
    if isinstance(panel, Network):
        drawn = panel.drawn
        return max(SHORTEST, 0.3 + min(width, drawn.width / 72) * drawn.height / drawn.width)
    if isinstance(panel, Bars):
        return max(SHORTEST, 0.7 + 0.17 * len(panel.names) * max(1, len(panel.series) * 0.7))
    rows, columns = panel.cells.shape
    room = max(0.0, width - (1.4 if width == WIDTH else 0.3))
    cell = min(0.3, room / max(columns, 1)) if panel.is_square else CELL * min(1.0, 24 / rows)
    beside = 0.9 if max(map(len, map(str, panel.columns)), default=0) <= FLAT else 1.4  # for the names of the columns
    return float(max(SHORTEST, beside + cell * rows))


@singledispatch
def _draw(panel: Any, ax: Axes) -> None:
    raise TypeError(type(panel))


@_draw.register
def _(panel: Heatmap, ax: Axes) -> None:
    low, high = panel.bounds
    cells = np.ma.masked_invalid(np.asarray(panel.cells, dtype=np.float64))
    ax.imshow(cells, cmap=_colours(panel.scale), vmin=low, vmax=high, interpolation="nearest",
                      aspect="equal" if panel.is_square else "auto")  # fmt: skip
    columns = [cut(str(label)) for label in panel.columns]
    upright = 90 if max(map(len, columns), default=0) > FLAT else 0
    _ticks(ax, "x", columns, rotation=upright)
    _ticks(ax, "y", [cut(str(label)) for label in panel.rows])
    if panel.words is not None:
        _words(ax, panel.words, cells)
    _named(ax, panel.title, panel.across, panel.down)


def _words(ax: Axes, words: Sequence[Sequence[str]], cells: Any) -> None:
    """Write a word into each cell, in white where the cell is dark."""
    inks = ax.images[-1].to_rgba(cells)  # [down, across, 4]
    light = (inks[..., :3] @ LUMA) * inks[..., 3] + 1 - inks[..., 3]
    for down, row in enumerate(words):
        for across, word in enumerate(row):
            ink = "white" if light[down, across] < 0.5 else "black"
            ax.text(across, down, cut(word, WORD), color=ink, fontsize="xx-small", ha="center", va="center", **LITERAL)


@_draw.register
def _(panel: Lines, ax: Axes) -> None:
    made = []
    for number, (name, values) in enumerate(panel.series.items()):
        ink = SERIES[number % len(SERIES)]
        made += ax.plot(panel.places, values, color=ink, linestyle=DASHES[number % len(DASHES)], label=name, marker=".")
        if panel.low is not None and panel.high is not None and name in panel.low:
            ax.fill_between(panel.places, panel.low[name], panel.high[name], color=ink, alpha=0.2, linewidth=0)
    _legend(ax, made, list(panel.series))
    _named(ax, panel.title, panel.across, panel.measure)


@_draw.register
def _(panel: Bars, ax: Axes) -> None:
    places, thick = np.arange(len(panel.names)), 0.8 / max(1, len(panel.series))
    made = [
        ax.barh(places + (number - (len(panel.series) - 1) / 2) * thick, [v if math.isfinite(v) else 0 for v in values],
                height=thick, color=SERIES[number % len(SERIES)], label=name)
        for number, (name, values) in enumerate(panel.series.items())
    ]  # fmt: skip
    _ticks(ax, "y", [cut(str(name)) for name in panel.names])
    ax.invert_yaxis()
    _legend(ax, made, list(panel.series))
    _named(ax, panel.title, panel.measure, "")


@_draw.register
def _(panel: Network, ax: Axes) -> None:
    drawn = panel.drawn
    for edge in drawn.edges:
        points = [point for _, step in edge.steps for point in step]
        codes = [CODES[command] for command, step in edge.steps for _ in step]
        ink, share = panel.ink(edge)
        ax.add_patch(PathPatch(Path(points, codes), fill=False, edgecolor=ink, linewidth=0.4 + 2 * share, alpha=0.8,
                               linestyle=DASHES[edge.dash]))  # fmt: skip
    letters = {"va": "center", "fontsize": _letters(drawn), **LITERAL}
    for box in drawn.boxes:
        corners = f"round,pad=0,rounding_size={box.radius}" if box.radius else "square,pad=0"
        ax.add_patch(FancyBboxPatch((box.x - box.width / 2, box.y), box.width, box.height, boxstyle=corners,
                                    facecolor="0.95", edgecolor="0.5", linewidth=0.5 * box.outline.width,
                                    linestyle=DASHES[box.outline.dashed]))  # fmt: skip
        ax.text(box.x, box.y + box.height / 2, cut(box.name), ha="center", **letters)
    for said, x, y in drawn.texts:
        ax.text(x, y, cut(said, TITLE), **letters)
    ax.set(xlim=(0, drawn.width), ylim=(drawn.height, 0), aspect="equal")
    ax.set_axis_off()
    ax.set_title(cut(panel.title, TITLE), loc="left", **LITERAL)


def _letters(panel: Network) -> float:
    """Return a size of letters, in points, that are as large beside their boxes as on a page."""
    return float(min(8.0, 11 * WIDTH * 72 / max(panel.width, 1)))


def _ticks(ax: Axes, axis: str, labels: Sequence[str], **style: Any) -> None:
    """Write the labels of an axis; of many every second, third, ..."""
    step = -(-len(labels) // TICKS) or 1
    at = range(0, len(labels), step)
    (ax.set_xticks if axis == "x" else ax.set_yticks)(list(at), [labels[i] for i in at], **LITERAL, **style)


def _legend(ax: Axes, made: Sequence[Any], names: Sequence[str]) -> None:
    """Write the names of several series, also of those that begin with an underscore, which matplotlib leaves out."""
    if len(names) > 1:
        legend = ax.legend(made, [" "] * len(names), frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set(text=cut(name, TITLE), **LITERAL)


def _named(ax: Axes, title: str, across: str, down: str) -> None:
    ax.set_title(cut(title, TITLE), loc="left", **LITERAL)
    ax.set_xlabel(cut(across, TITLE), **LITERAL)
    ax.set_ylabel(cut(down, SIDE), **LITERAL)


def _colours(scale: Scale) -> LinearSegmentedColormap:
    colours = [(at, (red / 255, green / 255, blue / 255, opacity)) for at, (red, green, blue), opacity in scale]
    return LinearSegmentedColormap.from_list("djinn", colours)
