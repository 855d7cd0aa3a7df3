"""Pictures as data: numbers over axes, with their labels, palette and zero, the same for plotly and matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from djinn_jupyter.widgets.pictures import ABOVE, BELOW, VIRIDIS, Colour
from djinn_jupyter.widgets.spelling import marked

MADE_BY: Final = "Djinn for Jupyter, a figure"  # in each file, so that a later figure may replace it
BLUE, ORANGE = "#2e7ad6", "#e06c28"
SERIES: Final = (BLUE, ORANGE, "#2a9d76", "#a06cc0", "#8c8c2c")  # told apart with every common colour blindness
SQUARE: Final = 64  # cells on a side, up to which they are square
WORD, TICK, SIDE, TITLE = 8, 24, 40, 96  # characters in a cell, of a label, of a name along a side, and of a title

SAMPLE, ROW, LETTER = 28, 20, 6.6  # pixels of a legend: a sample, a row, and a letter at most

Scale = Sequence[tuple[float, Colour, float]]
"""Colours between 0 and 1: where, the colour, and its opacity."""

# Zero is transparent, so that it is the page's own colour, light or dark.
SIGNED: Final[Scale] = ((0.0, BELOW, 1.0), (0.5, BELOW, 0.0), (0.5, ABOVE, 0.0), (1.0, ABOVE, 1.0))
SHARES: Final[Scale] = tuple((i / (len(VIRIDIS) - 1), colour, 1.0) for i, colour in enumerate(VIRIDIS))


def cut(text: str, most: int = TICK) -> str:
    """Return a text as one line of a figure, with the middle of a long one left out."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return shown if len(shown) <= most else f"{shown[: most // 2]}\u2026{shown[-(most // 2 - 1) :]}"


def token_labels(texts: Iterable[str], positions: Iterable[object]) -> list[str]:
    """Return a label for each position: its number, and its token, if any, with white space made visible."""
    return [f"{at} {marked(text)}" if text else str(at) for text, at in zip(texts, positions, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """Numbers `cells` [down, across], NaN where there is none; `rows` and `columns` are the labels of their places.
    `signed` numbers have zero in the middle of the scale and full colour at the largest, or at `limit`; others begin at
    zero, and end at 1 unless `limit` says. `low` and `high` are bounds of an interval, `words` texts in the cells; both
    have the shape of the cells."""

    title: str
    cells: NDArray[np.generic]
    rows: Sequence[object]
    columns: Sequence[object]
    down: str = ""
    across: str = ""
    measure: str = "value"
    signed: bool = True
    limit: float | None = None
    low: NDArray[np.generic] | None = None
    high: NDArray[np.generic] | None = None
    words: Sequence[Sequence[str]] | None = None

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The numbers at both ends of the scale."""
        sizes = np.abs(np.asarray(self.cells, dtype=np.float64))
        largest = float(sizes[np.isfinite(sizes)].max(initial=0.0)) or 1.0
        return (-(self.limit or largest), self.limit or largest) if self.signed else (0.0, self.limit or 1.0)

    @property
    def scale(self) -> Scale:
        return SIGNED if self.signed else SHARES

    @property
    def is_square(self) -> bool:
        """True where each cell is drawn as a square: where they are few, and need no room for words."""
        return bool(max(self.cells.shape) <= SQUARE) and self.words is None


def attention(title: str, cells: NDArray[np.generic], queries: Sequence[object], keys: Sequence[object]) -> Heatmap:
    """Return the weights of a head [queries, keys]."""
    return Heatmap(title=title, cells=cells, rows=queries, columns=keys, down="query", across="key",
                   measure="attention", signed=False)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over numbers: the values of each of the `series`, NaN where there is a gap. `low` and `high` have the
    bounds of the interval of a series, by its name."""

    title: str
    places: Sequence[float]
    series: Mapping[str, Sequence[float]]
    across: str = ""
    measure: str = "value"
    low: Mapping[str, Sequence[float]] | None = None
    high: Mapping[str, Sequence[float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars by name, the first on top: a value of each of the `series` for each of the `names`."""

    title: str
    names: Sequence[object]
    series: Mapping[str, Sequence[float]]
    measure: str = "value"


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """An edge of a graph: its `path` as the `d` of an SVG path, of absolute M, C and V. It is drawn by its `size`. One
    that `rises` runs from a lower row up to a higher one."""

    name: str
    path: str
    score: float
    size: float
    rises: bool = False

    @property
    def dash(self) -> int:
        """The number of its dashes, among solid, dashed, dotted and dash-dotted lines: its sign and direction."""
        return 2 * (self.score <= 0) + self.rises

    @cached_property
    def steps(self) -> list[tuple[str, list[tuple[float, float]]]]:
        """The commands of the path, each with its points."""
        found: list[tuple[str, list[tuple[float, float]]]] = []
        for command, text in re.findall(r"([MCV])([^MCV]*)", self.path):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", text)]
            across = [found[-1][1][-1][0]] if command == "V" else numbers[::2]
            found.append((command, list(zip(across, numbers if command == "V" else numbers[1::2], strict=True))))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The outline of a box: the `radius` of its corners in pixels, its width, and whether it is dashed."""

    radius: float | None = None
    width: int = 1
    dashed: bool = False

    def rounded(self, otherwise: float) -> float:
        """Return the radius; `otherwise` where the kind has none of its own."""
        return otherwise if self.radius is None else self.radius


OUTLINES: Final = {
    "error": Outline(dashed=True),
    "embedding": Outline(radius=0),
    "output": Outline(radius=13),
    "group": Outline(width=3),
}  # by the kind of a node; others have the default


@dataclass(frozen=True, kw_only=True)
class Box:
    """A node of a graph: `x` is its middle, `y` its upper side, in pixels. Its outline shows its `kind`."""

    name: str
    x: float
    y: float
    width: float
    height: float
    kind: str = ""

    @property
    def outline(self) -> Outline:
        return OUTLINES.get(self.kind, Outline())

    @property
    def radius(self) -> float:
        """The radius of its corners; half its height makes them round."""
        return min(self.outline.rounded(4), self.height / 2)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Boxes with edges between them, in pixels, y downwards. Edges are orange and solid above zero, blue and dotted
    below, dashed where they rise, and as thick as their sizes. `what` is what an edge raises or lowers; `kinds` explain
    the kinds of the boxes, `note` is another line of the legend. `texts` are words, each with the place of its
    beginning."""

    title: str
    width: float
    height: float
    boxes: Sequence[Box]
    edges: Sequence[Arrow]
    what: str = "the metric"
    kinds: Sequence[tuple[str, str]] = ()
    note: str = ""
    texts: Sequence[tuple[str, float, float]] = ()

    @cached_property
    def most(self) -> float:
        """The largest size of an edge, or 1."""
        return max((one.size for one in self.edges), default=0.0) or 1.0

    def ink(self, edge: Arrow) -> tuple[str, float]:
        """Return the colour of an edge, and its share of the largest size."""
        return ORANGE if edge.score > 0 else BLUE, edge.size / self.most

    @cached_property
    def drawn(self) -> Network:
        """The same graph with a legend below: a sample and its words in each row."""
        there = {(one.score > 0, one.rises) for one in self.edges}
        signs = [(rises, score) for rises in (False, True) for score in (1.0, -1.0) if (score > 0, rises) in there]
        words = [f"{self.what} would {'rise' if score > 0 else 'fall'}{', upwards' * rises}" for rises, score in signs]
        words += [*(said for _, said in self.kinds), *([self.note] if self.note else [])]
        rows = [self.height + ROW * (1 + number) for number in range(len(words))]
        lines = [
            Arrow(
                name=said, path=f"M4,{y}C4,{y} {SAMPLE},{y} {SAMPLE},{y}", score=score, size=self.most / 2, rises=rises
            )
            for (rises, score), said, y in zip(signs, words, rows, strict=False)
        ]
        boxes = [
            Box(name="", x=4 + SAMPLE / 2, y=y - 6, width=SAMPLE, height=12, kind=kind)
            for (kind, _), y in zip(self.kinds, rows[len(signs) :], strict=False)
        ]
        return replace(
            self,
            width=max([self.width, *(SAMPLE + 12 + LETTER * len(said) for said in words)]),
            height=max([self.height, *(y + ROW for y in rows)]),
            boxes=[*self.boxes, *boxes],
            edges=[*self.edges, *lines],
            texts=[(said, SAMPLE + 10, y) for said, y in zip(words, rows, strict=True)],
        )


Panel = Heatmap | Lines | Bars | Network
