"""A cell's output: plain text, static HTML, and the chart of its numbers, if they lie over axes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from djinn_jupyter.displayed import Shown
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link import naming
from djinn_jupyter.wire.texts import shown_lines

if TYPE_CHECKING:
    from djinn_jupyter.widgets.chart import Chart

PLOTLY = "application/vnd.plotly.v1+json"
CHART = "application/vnd.djinn.chart+json"
LARGEST = 300_000  # characters of the figures that a live notebook saves beside a card


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Shown):
    """One display in all its forms. The plain text has the content of the picture; `chart` makes the chart."""

    plain: str
    html: str
    chart: Callable[[], Chart] | None = None
    is_chart: bool = False  # the card has nothing but the chart, which a page that draws plotly shows in its place
    pictures: str | None = None  # a selector of those in the card that are the chart's panels, in their order
    since: Callable[[str], View] | None = None  # the same view with a note on later changes of its stop
    drawn: tuple[str, Any] | None = None  # a MIME type of ours with JSON, which the labextension draws instead

    def __repr__(self) -> str:
        return shown_lines(self.plain)

    def charted(self) -> Chart:
        """Return the chart. Raises UsageError where there is none."""
        if self.chart is None:
            raise UsageError("This has no figure: its numbers lie over no axes.")
        return self.chart()

    def figure(self) -> Figure:
        """Return the plotly figure. UsageError."""
        return Figure(made=self.charted().figure(), plain=self.plain.splitlines()[0])

    def _bundle(self) -> dict[str, Any]:
        # marimo's encoder takes no subclass of str
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": str(self.html)}
        if self.drawn is not None:
            bundle[self.drawn[0]] = self.drawn[1]
        if self.is_chart:
            bundle[PLOTLY] = self.figure()._bundle()[PLOTLY]
        if self.pictures is not None and naming.has_sidebar() and not naming.is_static():
            bundle |= self._live(self.pictures)
        return bundle

    def _live(self, pictures: str) -> dict[str, Any]:
        """Return the figures by which the labextension has plotly draw the pictures; none where they are too large."""
        figures = self.charted().bare_figures()
        return {CHART: {"pictures": pictures, "figures": figures}} if len(json.dumps(figures)) <= LARGEST else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Shown):
    """A plotly figure by itself; without plotly's renderer the page shows its text, the first line of the view."""

    made: Any
    plain: str

    def __repr__(self) -> str:
        return self.plain

    def _bundle(self) -> dict[str, Any]:
        bundle = {"text/plain": self.plain, PLOTLY: json.loads(self.made.to_json())}
        if "google.colab" in sys.modules:  # its page draws HTML alone, for which plotly loads its script there too
            bundle["text/html"] = self.made.to_html(include_plotlyjs="cdn", full_html=False)
        return bundle
