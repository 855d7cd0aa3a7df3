"""Results that a cell returns show themselves by their cards, which are found by name: the client knows no card."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, Final

VIEWS: Final = "djinn_jupyter.widgets.views"
SHORT: Final = 2000  # characters of a result's text
HEAD, TAIL = 1350, 600


class Displayed:
    """A result that a notebook displays by its view, also where `%load_ext djinn_jupyter` did not run. Its text has at
    most SHORT characters."""

    _view: ClassVar[str] = "table_view"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = _in_short(cls.__repr__)  # type: ignore[method-assign]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        try:
            draw = card_of(type(self))
        except Exception as error:  # noqa: BLE001  a card of another distribution may raise what it likes
            return {"text/plain": shortened(f"{self!r}\n{_why_no_card(self, error)}")}
        bundle: dict[str, Any] = draw(self._viewed)._repr_mimebundle_()
        return bundle | {"text/plain": self._shortened(bundle["text/plain"])}

    def _shortened(self, text: str) -> str:
        """Return the view's text, or what is the most of it in SHORT characters."""
        return shortened(text)

    def told(self) -> dict[str, list[Any]]:
        """Return the table of a card that has no view of its own, as lists by column; empty where there is none."""
        return {}

    @property
    def _viewed(self) -> Any:
        """Return the object that the view draws."""
        return self


def card_of(kind: type[Displayed]) -> Callable[..., Any]:
    """Return the function that draws results of this kind: of the module `card` beside the module or package `api` that
    names it, or of the core's views. Raises ImportError or AttributeError, or what the module raises."""
    names_it = next(base for base in kind.__mro__ if "_view" in vars(base))
    package, api, _ = f"{names_it.__module__}.".rpartition(".api.")
    drawing: Callable[..., Any] = getattr(import_module(f"{package}.card" if api else VIEWS), kind._view)
    return drawing


def _why_no_card(result: Displayed, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}"
    return f"The card of {type(result).__name__} cannot be imported; mend or install what it needs ({why})."


def shortened(text: str) -> str:
    """Return a text of at most SHORT characters: of a longer one the beginning and the end, whole lines where these are
    short."""
    if len(text) <= SHORT:
        return text
    head, tail = text[:HEAD], text[-TAIL:]
    head = head[: head.rfind("\n", HEAD // 2)] if "\n" in head[HEAD // 2 :] else head
    tail = tail[tail.find("\n") + 1 :] if "\n" in tail[: TAIL // 2] else tail
    return f"{head}\n... {len(text) - len(head) - len(tail):,} characters are left out ...\n{tail}"


def _in_short(told: Callable[[Any], str]) -> Callable[[Any], str]:
    @wraps(told)
    def told_in_short(result: Any) -> str:
        return shortened(told(result))

    return told_in_short
