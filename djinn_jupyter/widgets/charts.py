"""Line charts as SVG without interaction, drawn from rounded figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from djinn_jupyter.api.memory_trace import Reading, TracedTransfer
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import SCROLL, Html, card, element, folded, joined, part, small, table
from djinn_jupyter.widgets.panels import BLUE, SERIES, Lines
from djinn_jupyter.widgets.spelling import columns, figure, rounded
from djinn_jupyter.widgets.view import View
from djinn_jupyter.wire.texts import label

WIDTH, HEIGHT = 640, 120
BOTTOM, TOP = 18, 12
DASHES = (None, "7 3", "2 3", "9 3 2 3", "14 4")  # colour is never the only difference
LINE = 12  # pixels from one label to the next, so that both can be read
SOFT, AXIS = "#808080", "rgba(128,128,128,.35)"  # readable on white and on black: a picture cannot follow the theme
# A chart shrinks with its cell, and its letters less: drawn 256 pixels wide they are 8 high. Labels of the class `odd`
# are left out there.
NARROW = "@media(max-width:520px){text{font-size:15px}.odd{display:none}}"
NARROWER = "@media(max-width:340px){text{font-size:20px}}"
GROWTH = 20 / 11
DRAWN = "div:has(> img[src*=svg])"  # a selector of what `picture` returns
_SAFE = " =:/,;().-"  # beside letters and digits, the characters that need no escape in a URI


def line_chart(values: Sequence[float], labels: Sequence[object], *, alt: str) -> Html:
    """Draw `values` from left to right on an axis that begins at zero (or below, where values are negative)."""
    short = [rounded(value) for value in values]
    low, high = min(0.0, *short), max(short)
    spread, left = (high - low) or 1.0, _margin(figure(high), figure(low))

    def x(index: int) -> int:
        return left + round(index * (WIDTH - left - 8) / max(1, len(short) - 1))

    def y(value: float) -> int:
        return TOP + round((high - value) / spread * (HEIGHT - TOP - BOTTOM))

    path = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(short))
    return drawn(
        _text(left - 6, y(high) + 4, figure(high), "end", SOFT),
        _text(left - 6, y(low) + 4, figure(low), "end", SOFT),
        _text(left, HEIGHT - 3, labels[0], "start", SOFT),
        _text(WIDTH - 8, HEIGHT - 3, labels[-1], "end", SOFT),
        element("path", d=f"M{left},{TOP}V{y(low)}H{WIDTH - 8}", fill="none", stroke="rgba(128,128,128,.5)"),
        element("polyline", points=path, fill="none", stroke=BLUE, stroke_width="1.5", stroke_linejoin="round"),
        *(element("circle", cx=x(i), cy=y(v), r=2, fill=BLUE) for i, v in enumerate(short) if len(short) <= 64),
        alt=alt,
        height=HEIGHT,
    )


def histogram(counts: Sequence[int], low: str, high: str, *, alt: str) -> Html:
    """Draw counts as bars on an axis that begins at zero, between the ends of what they count."""
    most, base = max(*counts, 1), HEIGHT - BOTTOM
    left = _margin(f"{most:,}")
    wide = (WIDTH - left - 8) / len(counts)
    heights = [max(1, round(count / most * (base - TOP))) if count else 0 for count in counts]
    return drawn(
        _text(left - 6, TOP + 4, f"{most:,}", "end", SOFT),
        _text(left - 6, base + 4, "0", "end", SOFT),
        _text(left, HEIGHT - 3, low, "start", SOFT),
        _text(WIDTH - 8, HEIGHT - 3, high, "end", SOFT),
        element("path", d=f"M{left},{TOP}V{base}H{WIDTH - 8}", fill="none", stroke=AXIS),
        *(
            element("rect", x=round(left + at * wide), y=base - tall, width=round(wide) - 2, height=tall, fill=BLUE)
            for at, tall in enumerate(heights)
        ),
        alt=alt,
        height=HEIGHT,
    )


def drawn(*contents: object, alt: str, height: int, style: str = NARROW + NARROWER) -> Html:
    """Return a chart of WIDTH by `height` as a picture, with its `style` where it is drawn smaller."""
    return picture(element("style", Html(style)), *contents, alt=alt, width=WIDTH, height=height)


def picture(*contents: object, alt: str, width: int, height: int) -> Html:
    """Return an SVG drawing as an <img>. In a page that does not trust the notebook inline SVG elements are removed but
    their text is left behind; inside an image the text stays in place."""
    inside = element("svg", *contents, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
                     width=width, height=height, font_family="system-ui,sans-serif")  # fmt: skip
    made = element("img", src="data:image/svg+xml," + quote(inside, safe=_SAFE), alt=alt, width=width,
                   style="max-width:100%;height:auto")  # fmt: skip
    return element("div", made, style=SCROLL)


def _text(x: int, y: int, text: object, anchor: str, colour: str, class_: str | None = None) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=colour, font_size="11", class_=class_)


def _margin(*labels: str) -> int:
    """Return the width that is left for the labels of an axis at their largest."""
    return 8 + round(GROWTH * max(map(_wide, labels)))


def series_chart(
    across: Sequence[float],
    series: Sequence[Sequence[float]],
    *,
    name: str,
    alt: str,
    most: float | None = None,
    spelled: Callable[[float], str] = figure,
    height: int = 220,
) -> Html:
    """Draw one line for each of `series` over rising `across`, labelled `name`, on an axis from 0 (or below, where
    values are negative) to `most`. A line has a gap where its value is not finite."""
    right, top, bottom = max(12, _wide(f"{across[-1]:g}")), 12, 43
    short = [0.0, *(rounded(v) for values in series for v in values if math.isfinite(v))]
    high, deep = most or max(short), min(short)
    high = high if high > deep else 1.0
    low, spread = across[0], (across[-1] - across[0]) or 1.0
    left = max(44, _margin(spelled(high), spelled(deep)))

    def x(value: float) -> int:
        return left + round((value - low) / spread * (WIDTH - left - right))

    def y(value: float) -> int:
        return top + round((1 - (rounded(value) - deep) / (high - deep)) * (height - top - bottom))

    lines = []
    for index, values in enumerate(series):
        ink = {"stroke": colour(index), "stroke_dasharray": DASHES[index % len(DASHES)]}
        for run in _finite_parts(across, values):
            points = [(x(at), y(value)) for at, value in run]
            path = " ".join(f"{a},{b}" for a, b in points)
            lines.append(element("polyline", points=path, fill="none", stroke_width="1.8", **ink))
            lines += [element("circle", cx=a, cy=b, r="2.5", fill=colour(index)) for a, b in points]
    base, foot = y(0), y(deep)
    zero = base - top >= LINE and (base == foot or foot - base >= LINE)
    crowded = "odd" if min(base - top, foot - base or HEIGHT) < LINE * GROWTH else None
    ticks = [*across[: -1 : max(1, -(-len(across) // 16))], across[-1]]
    return drawn(
        element("path", d=f"M{left},{top}V{base}H{WIDTH - right}", fill="none", stroke=AXIS),
        *(element("path", d=f"M{x(at)},{top}V{foot + 4}", stroke=AXIS) for at in across if at in (0, low, across[-1])),
        *(_text(x(at), foot + 19, f"{at:g}", "middle", SOFT, odd) for at, odd in _apart(ticks, x)),
        _text(left - 6, y(high) + 4, spelled(high), "end", SOFT),
        *([_text(left - 6, base + 4, "0", "end", SOFT, crowded)] if zero else []),
        *([_text(left - 6, foot + 4, spelled(deep), "end", SOFT)] if foot > base else []),
        _text((left + WIDTH - right) // 2, height - 5, name, "middle", SOFT),
        *lines,
        alt=alt,
        height=height,
    )


def _apart(ticks: Sequence[float], x: Callable[[float], int]) -> list[tuple[float, str | None]]:
    """Return the ticks whose labels do not meet, the last among them; every other one is `odd`."""
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or x(kept[-1]) - x(tick) >= (_wide(f"{tick:g}") + _wide(f"{kept[-1]:g}")) // 2 + 6:
            kept.append(tick)
    return [(tick, "odd" if number % 2 else None) for number, tick in enumerate(kept)][::-1]


def _wide(text: str) -> int:
    """Return how many pixels a figure of ours takes at most: a percent 11, a digit 7, a sign or a point 4."""
    return sum(11 if letter == "%" else 7 if letter.isalnum() else 4 for letter in text)


def _finite_parts(across: Sequence[float], values: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """Yield the runs of neighbours whose values are finite, each with its place."""
    placed = zip(across, values, strict=True)
    return (list(part) for finite, part in groupby(placed, lambda one: math.isfinite(one[1])) if finite)


def keys(names: Sequence[str]) -> Html:
    """Return the legend of a chart: a sample of each line with its name."""
    return element("div", joined((_key(name, index) for index, name in enumerate(names)), "\u2002"))


def _key(name: str, index: int) -> Html:
    ink = {"stroke": colour(index), "stroke_dasharray": DASHES[index % len(DASHES)], "stroke_width": "2"}
    line = element("svg", element("path", d="M0,5H26", **ink), width=26, height=10, aria_hidden="true",
                   style="display:inline-block;vertical-align:middle")  # fmt: skip
    return joined([line, " ", small(name)])


def colour(index: int) -> str:
    return SERIES[index % len(SERIES)]


# A memory trace prepared for drawing: stacked bands, pooled to a few hundred columns; the same for canvas and SVG.

COLUMNS: Final = 160
NAMED: Final = 6  # sessions with a band of their own; the rest share one
WEIGHTS_INK, EMPTY_INK, OTHERS_INK = "#8a8a8a", "rgba(128,128,128,.22)", "#5b6b7b"
RING_INK = "#b5b5b5"
SESSION_INKS: Final = (*SERIES, "#56b4e9", "#b08968")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One layer of the stack: its bytes at each column."""

    name: str
    ink: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCourse:
    """The bytes on the device over time. `moves` are (at, True if out of the device)."""

    times: tuple[float, ...]
    bands: tuple[Band, ...]
    budget: int
    host: tuple[int, ...]
    disk: tuple[int, ...]
    moves: tuple[tuple[float, bool], ...]

    @property
    def high(self) -> int:
        """The top of the axis: the highest stack, and the budget where it is not far above."""
        stack = max(sum(band.sizes[i] for band in self.bands) for i in range(len(self.times)))
        return max(self.budget if self.budget < 3 * stack else 0, stack, 1)

    def message(self) -> dict[str, Any]:
        """Return the course as JSON values for the canvas."""
        return {
            "times": [round(at, 2) for at in self.times],
            "bands": [{"name": b.name, "ink": b.ink, "sizes": list(b.sizes)} for b in self.bands],
            "budget": self.budget,
            "high": self.high,
            "host": list(self.host),
            "disk": list(self.disk),
            "moves": [[round(at, 2), out] for at, out in self.moves],
        }


def course_of(readings: Sequence[Reading], moves: Sequence[TracedTransfer]) -> MemoryCourse:
    """Return the course at no more than COLUMNS moments: of each block of readings the one with most bytes."""
    kept = _pooled(readings)
    names = largest(kept, NAMED)
    streams = any(r.ring for r in kept)
    name = "weights that stay" if streams else "weights"
    bands = [Band(name=name, ink=WEIGHTS_INK, sizes=tuple(r.weights for r in kept))]
    if streams:
        bands.append(Band(name="ring", ink=RING_INK, sizes=tuple(r.ring_bytes for r in kept)))
    for ink, name in zip(SESSION_INKS, names, strict=False):
        bands.append(Band(name=label(name), ink=ink, sizes=tuple(dict(r.sessions).get(name, 0) for r in kept)))
    rest = tuple(sum(size for name, size in r.sessions if name not in names) for r in kept)
    if any(rest):
        bands.append(Band(name="other sessions", ink=OTHERS_INK, sizes=rest))
    bands.append(Band(name="empty pages", ink=EMPTY_INK, sizes=tuple(r.empty for r in kept)))
    if any(r.others for r in kept):
        bands.append(Band(name="other programs", ink="#c9b458", sizes=tuple(r.others or 0 for r in kept)))
    return MemoryCourse(
        times=tuple(r.at for r in kept),
        bands=tuple(bands),
        budget=kept[-1].budget,
        host=tuple(r.host for r in kept),
        disk=tuple(r.disk for r in kept),
        moves=tuple((m.at, m.transfer.direction == "out") for m in moves if m.at >= kept[0].at),
    )


def _pooled(readings: Sequence[Reading]) -> list[Reading]:
    block = -(-len(readings) // COLUMNS)
    if block == 1:
        return list(readings)
    stretches = [readings[i : i + block] for i in range(0, len(readings), block)]
    return [max(stretch, key=lambda reading: reading.accounted) for stretch in stretches]


def largest(readings: Sequence[Reading], count: int) -> list[str]:
    """Return the names of the `count` sessions with the highest peak of bytes, in alphabetical order."""
    most: dict[str, int] = {}
    for reading in readings:
        for name, size in reading.sessions:
            most[name] = max(most.get(name, 0), size)
    return sorted(sorted(most, key=lambda name: (-most[name], name))[:count])


def dose_response_view(
    doses: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    dose: str,
    response: str,
    title: str,
    digits: int = 2,
) -> View:
    """Draw a dose-response. `series` maps the name of a measure to its values, which the table has with so many
    `digits`; doses rise, and zero is on the axis."""
    rows = [[f"{x:g}", *(figure(values[i], digits) for values in series.values())] for i, x in enumerate(doses)]
    lines = Lines(title=title, places=doses, series=series, across=dose, measure=response)

    chart = series_chart(doses, list(series.values()), name=dose, alt=f"{response} over {dose}")
    figures_as_table = folded(table([dose, *series], rows, numeric=range(len(series) + 1)))
    html = card(part(chart, keys(list(series)), name=response), part(figures_as_table), title=title)
    plain = f"{title} ({response})\n{columns(rows, [dose, *series])}"
    return View(plain=plain, html=html, chart=lambda: Chart(panels=[lines]), is_chart=True, pictures=DRAWN)
