"""A chart: one or several pictures, which plotly draws for a page and matplotlib for a paper. Neither library is
imported before it draws."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.api.arguments import given_path
from djinn_jupyter.api.result_files import put
from djinn_jupyter.displayed import PICTURES
from djinn_jupyter.errors import MissingDependency, UsageError
from djinn_jupyter.files import contents_of
from djinn_jupyter.widgets.panels import MADE_BY, Panel
from djinn_jupyter.wire.texts import in_quotes

NO_MATPLOTLIB: Final = (
    "This picture is drawn by matplotlib, which is not installed here: pip install matplotlib. figure() and files that "
    "end in .html are drawn by plotly."
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One picture, or several of equal rank, such as those of heads: plotly shows one with a menu of the others,
    matplotlib all side by side."""

    panels: Sequence[Panel]

    def figure(self) -> Any:
        """Return a plotly figure."""
        from djinn_jupyter.widgets import plotly_chart

        return plotly_chart.drawn(self.panels)

    def bare_figures(self) -> list[dict[str, Any]]:
        """Return a plotly figure of each picture without its title, as JSON values, and as `width` the pixels across
        that it needs at most, or None."""
        from djinn_jupyter.widgets import plotly_chart

        bare = [replace(panel, title="") for panel in self.panels]
        return [json.loads(plotly_chart.drawn([one]).to_json()) | {"width": plotly_chart.width(one)} for one in bare]

    def plot(self, ax: Any = None) -> Any:
        """Draw with matplotlib into `ax` (for several pictures into as many), by default into a new figure of a paper's
        size; return the Axes, an array of them for several. UsageError; MissingDependency."""
        return _matplotlib().plotted(self.panels, ax)

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write a picture: .pdf, .svg and .png by matplotlib at a paper's size, .html by plotly with its own script, so
        that nothing is loaded. Return the path. A figure that Djinn wrote is replaced, another file only with
        `replace`. UsageError; MissingDependency; StorageFailed."""
        target = picture_path(path)
        ending = target.suffix.lower()
        data = self._html() if ending == ".html" else self._paper(ending[1:])
        put(target, data, replace=replace or (target.is_file() and MADE_BY.encode() in contents_of(target)))
        return target

    def _html(self) -> bytes:
        page: str = self.figure().to_html(
            include_plotlyjs=True, include_mathjax=False, config={"displaylogo": False}, div_id="figure"
        )
        return f"{page}<!-- {MADE_BY} -->".encode()

    def _paper(self, ending: str) -> bytes:
        file = io.BytesIO()
        _matplotlib().write(self.panels, file, ending)
        return file.getvalue()


def _matplotlib() -> Any:
    try:
        from djinn_jupyter.widgets import matplotlib_chart
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise MissingDependency(NO_MATPLOTLIB) from None
    return matplotlib_chart


def picture_path(path: str | Path) -> Path:
    """Return the path of a picture. Raises UsageError for another ending, MissingDependency for one that cannot be
    drawn here."""
    target = given_path(path, "file")
    if target.suffix.lower() not in PICTURES:
        raise UsageError(
            f"A figure is written to a file that ends in {', '.join(PICTURES)}; {in_quotes(target.name)} does not."
        )
    if target.suffix.lower() != ".html" and find_spec("matplotlib") is None:
        raise MissingDependency(NO_MATPLOTLIB)
    return target
