"""The display of results, stops, views and errors, without `%load_ext`. Jupyter and IPython ask for all forms by
MIME type, marimo for one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

PICTURES: Final = (".pdf", ".svg", ".png", ".html")  # endings of the files of a figure


class Shown:
    """A value with a display. A subclass defines `_bundle`: its forms by MIME type, "text/plain" among them."""

    __slots__ = ()

    def _bundle(self) -> dict[str, Any]:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return self._bundle()

    def _display_(self) -> Drawn:
        """Return the HTML for marimo, which would show a bundle of several types as tabs; else the text."""
        bundle = self._bundle()
        mime = "text/html" if "text/html" in bundle else "text/plain"
        return Drawn(mime=mime, content=bundle[mime])


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One form of a display, as marimo takes it."""

    mime: str
    content: str

    def _mime_(self) -> tuple[str, str]:
        return self.mime, self.content


class ShownError(Shown):
    """Makes an error, which a cell may also return, a card with its sentence."""

    __slots__ = ()

    def _bundle(self) -> dict[str, Any]:
        bundle: dict[str, Any] = import_module("djinn_jupyter.widgets.views").error_view(self)._bundle()
        return bundle
