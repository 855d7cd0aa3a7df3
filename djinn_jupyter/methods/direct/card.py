"""Direct logit attribution: a table of layers and modules (or heads), tinted by the sign and size of each value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from djinn_jupyter.api.result import STRONGEST
from djinn_jupyter.methods.direct.api import Attribution
from djinn_jupyter.widgets.chart import Chart
from djinn_jupyter.widgets.html import Html, card, div, element, facts, part, table
from djinn_jupyter.widgets.panels import Heatmap
from djinn_jupyter.widgets.pictures import ABOVE, BELOW, background
from djinn_jupyter.widgets.spelling import columns, logit, marked
from djinn_jupyter.widgets.view import View

SAID = "each module's output through the model's head, with the final norm's factor as it is at this stop"


def attribution_view(read: Attribution, *, session: str | None = None, top: int | None = None) -> View:
    """Show the parts by layer and module, and the `top` largest of all; by default some where neurons are included."""
    rows, ends = read.rows(), read.ends()
    strongest = [(name, logit(value, signed=True)) for name, value in read.top(_count(read, top))]
    plain = [[str(layer), *("" if v is None else logit(v, signed=True) for v in values)] for layer, values in rows]
    names = " \u2212 ".join(marked(token.text, token.token) for token in read.tokens)
    html = card(
        part(_tinted(read.headings, rows)),
        *([part(table(["", "part"], strongest, numeric=(1,)), name="the largest parts")] if strongest else []),
        facts([(name, logit(value, signed=True)) for name, value in ends]),
        part(*(div("dj-note", note) for note in (f"{SAID}.", read.remainder, *read.notes))),
        title=f"What adds to the logit of {names}",
        beside=f"position {read.position}, layers 0 to {read.layer - 1}",
        session=session,
    )
    said = [
        f"what adds to the {read.of} at position {read.position}: {SAID}",
        columns(plain, ["layer", *read.headings]),
        *(f"{name}: {logit(value, signed=True)}" for name, value in ends),
        *(["the largest parts", columns(strongest, ["", "part"])] if strongest else []),
        read.remainder,
        *read.notes,
    ]
    return View(plain="\n".join(said), html=html, chart=lambda: _chart(read))


def _count(read: Attribution, top: int | None) -> int:
    return max(top, 0) if top is not None else STRONGEST if read.neurons else 0


def _tinted(names: Sequence[str], rows: Sequence[tuple[int, list[float | None]]]) -> Html:
    most = max((abs(v) for _, values in rows for v in values if v is not None), default=0.0) or 1.0
    head = ["layer", *(element("th", name, scope="col", class_="dj-tint dj-num") for name in names)]
    made = [[layer, *(_cell(value, most) for value in values)] for layer, values in rows]
    return table(head, made, last=True)


def _cell(value: float | None, most: float) -> Html:
    if value is None:
        return element("td", "", class_="dj-tint")
    style = background(ABOVE if value > 0 else BELOW, round(abs(value) / most, 2) * 0.55)
    return element("td", logit(value, signed=True), class_="dj-tint dj-num", style=style)


def _chart(read: Attribution) -> Chart:
    rows = read.rows()
    cells = np.array([[np.nan if v is None else v for v in values] for _, values in rows], dtype=np.float64)
    return Chart(panels=[Heatmap(title=f"{read.of}, position {read.position}", cells=cells, rows=range(read.layer),
                                 columns=read.headings, down="layer", measure="logit")])  # fmt: skip
