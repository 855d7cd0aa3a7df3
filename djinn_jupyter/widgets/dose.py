"""A dose-response: one line a measure over the strength of an intervention; as text, as SVG, and to hover over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_jupyter.widgets.markup import Html, div, element, span
from djinn_jupyter.widgets.spelling import columns, figure, rounded
from djinn_jupyter.widgets.theme import card, part
from djinn_jupyter.widgets.view import View

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 36
COLOURS = ("#2e7ad6", "#e06c28", "#2a9d76", "#a06cc0", "#8c8c2c")  # those of the plotly figure
SOFT, LINE = "var(--jp-content-font-color2,#7a7a7a)", "rgba(128,128,128,.35)"


def dose_response_view(
    doses: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    dose: str,
    response: str,
    title: str,
    hover: bool = False,
) -> View:
    """`series` maps the name of a measure to its values; doses rise, and zero is on the axis."""
    rows = [[f"{x:g}", *(figure(values[i], 2) for values in series.values())] for i, x in enumerate(doses)]

    def drawn() -> object:
        from djinn_jupyter.widgets import figures

        return figures.dose_response(doses, series, dose=dose, response=response, title=title)

    named = div("dj-legend", *(_named(name, i) for i, name in enumerate(series)))
    html = card(part(_chart(doses, series, dose, response), named), title=title)
    return View(plain=f"{title}\n{columns(rows, [dose, *series])}", html=html, hover=drawn if hover else None)


def _named(name: str, index: int) -> Html:
    return span("", element("span", "\u25cf", style=f"color:{_colour(index)}"), " ", name)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _chart(doses: Sequence[float], series: Mapping[str, Sequence[float]], dose: str, response: str) -> Html:
    top = max(rounded(v, 2) for values in series.values() for v in values)
    low, spread = doses[0], (doses[-1] - doses[0]) or 1.0

    def x(value: float) -> int:
        return LEFT + round((value - low) / spread * (WIDTH - LEFT - RIGHT))

    def y(value: float) -> int:
        return TOP + round((1 - rounded(value, 2) / (top or 1.0)) * (HEIGHT - TOP - BOTTOM))

    lines = []
    for index, values in enumerate(series.values()):
        points = [(x(at), y(value)) for at, value in zip(doses, values, strict=True)]
        path = " ".join(f"{a},{b}" for a, b in points)
        lines.append(element("polyline", points=path, fill="none", stroke=_colour(index), stroke_width="1.8"))
        lines += [element("circle", cx=a, cy=b, r="2.5", fill=_colour(index)) for a, b in points]
    base = y(0)
    return element(
        "svg",
        element("path", d=f"M{LEFT},{TOP}V{base}H{WIDTH - RIGHT}", fill="none", stroke=LINE),
        *(element("path", d=f"M{x(at)},{TOP}V{base + 4}", stroke=LINE) for at in doses if at in (0, low, doses[-1])),
        *(_text(x(at), base + 16, f"{at:g}", "middle") for at in doses),
        _text(LEFT - 6, y(top) + 4, figure(top, 2), "end"),
        _text(LEFT - 6, base + 4, "0", "end"),
        _text((LEFT + WIDTH - RIGHT) // 2, HEIGHT - 4, dose, "middle"),
        *lines,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        role="img",
        aria_label=f"{response} over {dose}",
    )


def _text(x: int, y: int, text: object, anchor: str) -> Html:
    return element("text", text, x=x, y=y, text_anchor=anchor, fill=SOFT, font_size="11")
