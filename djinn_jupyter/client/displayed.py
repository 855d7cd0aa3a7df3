"""Results that a cell returns show themselves by their views, which are found by name: the client knows no view."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar


class Displayed:
    """A result that a notebook displays by its view, also where `%load_ext djinn_jupyter` did not run."""

    _view: ClassVar[str] = "table_view"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        view = getattr(import_module("djinn_jupyter.widgets.views"), self._view)(self._viewed)
        bundle: dict[str, Any] = view._repr_mimebundle_()
        return bundle

    def told(self) -> dict[str, list[Any]]:
        """Return the table of a card that has no view of its own, as lists by column; empty where there is none."""
        return {}

    @property
    def _viewed(self) -> Any:
        """Return the object that the view draws."""
        return self
