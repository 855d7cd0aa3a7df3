"""Plots as inline SVG: lines over time and bars by layer, axes labelled with units. Knows no experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 680, 220
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 14, 34
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for colour-blind eyes too


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    level: tuple[str, float] | None = None,
    marks: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Draw curves of (x, y); `level` draws a dashed line, such as a capacity, `marks` ticks on the x axis, such as
    swaps, a row for each name. All are in the legend."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    named = {} if marks is None else dict(marks)
    frame = _Frame(points, None if level is None else level[1], [tick for ticks in named.values() for tick in ticks])
    drawn = []
    for curve, colour in zip(curves.values(), COLOURS, strict=False):
        places = " ".join(frame.place(point) for point in curve)
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    if level is not None:
        height = frame.y(level[1])
        drawn.append(f'<path d="M{LEFT},{height}H{WIDTH - RIGHT}" stroke="currentColor" stroke-dasharray="5 4"/>')
    for row, ticks in enumerate(named.values()):
        base, colour = HEIGHT - BOTTOM - 8 * row, COLOURS[len(curves) + row]
        drawn += [f'<path d="M{frame.x(tick)},{base}v-7" stroke="{colour}" stroke-width="1.4"/>' for tick in ticks]
    names = [*curves, *named]
    return _svg(frame.axes(x, y) + "".join(drawn), names, f"{y} against {x}", level and level[0])


def bars(
    groups: Mapping[str, Mapping[str, float]], *, x: str, y: str, limits: tuple[str, Mapping[str, float]] | None = None
) -> str:
    """Draw one group of bars for each key of `groups`, one bar for each series in it; `limits` draws a dashed line
    across the groups that it has a value for."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    top = max((value for group in groups.values() for value in group.values()), default=0.0)
    if not series or top <= 0:
        return ""
    frame = _Frame([(0.0, 0.0), (float(len(groups)), top)])
    drawn = []
    for place, (label, group) in enumerate(groups.items()):
        width = 0.8 / len(series)
        for number, name in enumerate(series):
            if name in group:
                left, height = frame.x(place + 0.1 + number * width), frame.y(group[name])
                across = frame.x(place + 0.1 + (number + 1) * width) - left - 1
                drawn.append(
                    f'<rect x="{left}" y="{height}" width="{max(across, 1)}" height="{frame.y(0) - height}" '
                    f'fill="{COLOURS[number % len(COLOURS)]}"><title>{escape(name)}: {group[name]:.4g}</title></rect>'
                )
        if limits is not None and label in limits[1]:
            line = f"M{frame.x(place + 0.04)},{frame.y(limits[1][label])}H{frame.x(place + 0.96)}"
            drawn.append(f'<path d="{line}" stroke="currentColor" stroke-width="1.4" stroke-dasharray="5 4"/>')
        drawn.append(_text(frame.x(place + 0.5), HEIGHT - BOTTOM + 14, label, "middle"))
    return _svg(frame.axes(x, y, ticks=False) + "".join(drawn), series, f"{y} by {x}", limits and limits[0])


class _Frame:
    """Maps values to coordinates in the picture. Both axes begin at zero; `marks` lie on the x axis."""

    def __init__(
        self, points: Sequence[tuple[float, float]], level: float | None = None, marks: Sequence[float] = ()
    ) -> None:
        along = [0.0, *(p[0] for p in points), *marks]
        self.low, self.high = min(along), max(along)
        self.top = max([p[1] for p in points] + ([level] if level is not None else [])) * 1.05 or 1.0

    def x(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(LEFT + (value - self.low) / span * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def place(self, point: tuple[float, float]) -> str:
        return f"{self.x(point[0])},{self.y(point[1])}"

    def axes(self, x: str, y: str, *, ticks: bool = True) -> str:
        base = HEIGHT - BOTTOM
        parts = [f'<path d="M{LEFT},{TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>']
        parts += [_text(LEFT - 6, self.y(self.top * f) + 4, _tick(self.top * f), "end") for f in (0, 0.5, 1)]
        if ticks:
            middle = (self.low + self.high) / 2
            parts += [_text(self.x(v), base + 14, _tick(v), "middle") for v in (self.low, middle, self.high)]
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x, "middle"))
        parts.append(
            f'<text transform="translate(12 {(TOP + base) / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
        )
        return "".join(parts)


def _svg(inside: str, names: Sequence[str], title: str, dashed: str | None = None) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, COLOURS, strict=False)
    )
    if dashed is not None:
        legend += f'<span class="key"><i class="dashed"></i>{escape(dashed)}</span>'
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" font-size="11">'
    return f"<figure>{opening}{inside}</svg><figcaption>{legend}</figcaption></figure>"


def _tick(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _text(x: float, y: float, text: object, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(str(text))}</text>'
