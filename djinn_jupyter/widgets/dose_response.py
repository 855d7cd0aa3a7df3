"""A dose-response: one line per measure over the strength of an intervention; as text, SVG and a plotly figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_jupyter.widgets.markup import folded, table
from djinn_jupyter.widgets.spelling import columns, figure
from djinn_jupyter.widgets.svg import keys, series_chart
from djinn_jupyter.widgets.theme import card, part
from djinn_jupyter.widgets.view import View


def dose_response_view(
    doses: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    dose: str,
    response: str,
    title: str,
    digits: int = 2,
    hover: bool = False,
) -> View:
    """Draw a dose-response. `series` maps the name of a measure to its values, which the table has with so many
    `digits`; doses rise, and zero is on the axis."""
    rows = [[f"{x:g}", *(figure(values[i], digits) for values in series.values())] for i, x in enumerate(doses)]

    def drawn() -> object:
        from djinn_jupyter.widgets import figures

        return figures.dose_response(doses, series, dose=dose, response=response, title=title)

    chart = series_chart(doses, list(series.values()), name=dose, alt=f"{response} over {dose}")
    figures_as_table = folded(table([dose, *series], rows, numeric=range(len(series) + 1)))
    html = card(part(chart, keys(list(series)), name=response), part(figures_as_table), title=title)
    return View(
        plain=f"{title} ({response})\n{columns(rows, [dose, *series])}", html=html, hover=drawn if hover else None
    )
