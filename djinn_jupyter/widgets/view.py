"""A cell's output: plain text, static HTML, and a plotly figure if `hover` was requested."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from djinn_jupyter.displayed import Shown

PLOTLY = "application/vnd.plotly.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Shown):
    """One display in all its forms. The plain text has the content of the picture; `hover` makes a plotly figure."""

    plain: str
    html: str
    hover: Callable[[], Any] | None = None
    since: Callable[[str], View] | None = None  # the same view with a note on later changes of its stop
    drawn: tuple[str, Any] | None = None  # a MIME type of ours with JSON, which the labextension draws instead

    def __repr__(self) -> str:
        return self.plain

    def card(self) -> View:
        """Return the view without its figure: a page given both in one output draws only the figure."""
        return replace(self, hover=None)

    def figure(self) -> Figure | None:
        """Return the figure alone, to be shown below the card."""
        return None if self.hover is None else Figure(made=self.hover(), plain=self.plain.splitlines()[0])

    def _bundle(self) -> dict[str, Any]:
        # marimo's encoder takes no subclass of str
        bundle: dict[str, Any] = {"text/plain": self.plain, "text/html": str(self.html)}
        if self.drawn is not None:
            bundle[self.drawn[0]] = self.drawn[1]
        if self.hover is not None:
            bundle[PLOTLY] = json.loads(self.hover().to_json())
        return bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Shown):
    """A plotly figure by itself; without plotly's renderer the page shows its text, the first line of the view."""

    made: Any
    plain: str

    def __repr__(self) -> str:
        return self.plain

    def _bundle(self) -> dict[str, Any]:
        return {"text/plain": self.plain, PLOTLY: json.loads(self.made.to_json())}
