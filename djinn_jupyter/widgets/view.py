"""What a cell shows: plain text, static HTML, and a plotly figure where hovering was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

PLOTLY = "application/vnd.plotly.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One display in all its forms. The plain text says what the picture says; `hover` makes a plotly figure."""

    plain: str
    html: str
    hover: Callable[[], Any] | None = None
    since: Callable[[str], View] | None = None  # the same view, which says what has happened to its stop since

    def __repr__(self) -> str:
        return self.plain

    def card(self) -> View:
        """The view without its figure: a page that is given both in one output draws the figure alone."""
        return replace(self, hover=None)

    def figure(self) -> Figure | None:
        """The figure alone, to be shown below the card."""
        return None if self.hover is None else Figure(made=self.hover(), plain=self.plain.splitlines()[0])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.plain, "text/html": self.html}
        if self.hover is not None:
            bundle[PLOTLY] = json.loads(self.hover().to_json())
        return bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plotly figure by itself; without plotly's renderer its first line says what it is of."""

    made: Any
    plain: str

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {"text/plain": self.plain, PLOTLY: json.loads(self.made.to_json())}
