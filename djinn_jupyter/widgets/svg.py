"""A line chart as inline SVG, drawn from rounded figures; for pictures that need no pointer."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_jupyter.widgets.markup import Html, element
from djinn_jupyter.widgets.spelling import figure, rounded

WIDTH, HEIGHT = 640, 120
LEFT, BOTTOM, TOP = 48, 18, 8


def line_chart(values: Sequence[float], labels: Sequence[object], *, alt: str) -> Html:
    """`values` from left to right on an axis that begins at zero (or below, where values are negative)."""
    short = [rounded(value) for value in values]
    low, high = min(0.0, *short), max(short)
    spread = (high - low) or 1.0

    def x(index: int) -> int:
        return LEFT + round(index * (WIDTH - LEFT - 8) / max(1, len(short) - 1))

    def y(value: float) -> int:
        return TOP + round((high - value) / spread * (HEIGHT - TOP - BOTTOM))

    path = " ".join(f"{x(i)},{y(value)}" for i, value in enumerate(short))
    soft = "var(--jp-content-font-color2,#7a7a7a)"
    return element(
        "svg",
        _text(LEFT - 6, y(high) + 4, figure(high), "end", soft),
        _text(LEFT - 6, y(low) + 4, figure(low), "end", soft),
        _text(LEFT, HEIGHT - 3, labels[0], "start", soft),
        _text(WIDTH - 8, HEIGHT - 3, labels[-1], "end", soft),
        element("path", d=f"M{LEFT},{TOP}V{y(low)}H{WIDTH - 8}", fill="none", stroke="rgba(128,128,128,.5)"),
        element("polyline", points=path, fill="none", stroke="#2e7ad6", stroke_width="1.5", stroke_linejoin="round"),
        *(element("circle", cx=x(i), cy=y(v), r=2, fill="#2e7ad6") for i, v in enumerate(short) if len(short) <= 64),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        role="img",
        aria_label=alt,
    )


def _text(x: int, y: int, text: object, anchor: str, colour: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=colour, font_size="11")
