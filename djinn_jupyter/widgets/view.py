"""What a cell shows: plain text, static HTML, and a plotly figure where hovering was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PLOTLY = "application/vnd.plotly.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One display in all its forms. The plain text says what the picture says; `hover` makes a plotly figure."""

    plain: str
    html: str
    hover: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.plain, "text/html": self.html}
        if self.hover is not None:
            bundle[PLOTLY] = json.loads(self.hover().to_json())
        return bundle
