"""Results that a cell returns display their cards, which are found by name: the client knows no card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from inspect import unwrap
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from djinn_jupyter.api.names import Digests, naming
from djinn_jupyter.displayed import PICTURES, Shown
from djinn_jupyter.errors import MissingDependency
from djinn_jupyter.wire.texts import aligned, shown_lines

VIEWS: Final = "djinn_jupyter.widgets.views"
SHORT: Final = 2000  # characters of a result's text
HEAD, TAIL = 1350, 600


class Displayed(Shown):
    """A result that is displayed by its view. Its text is short."""

    _view: ClassVar[str] = "table_view"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = _in_short(cls.__repr__)  # type: ignore[method-assign]

    def _bundle(self) -> dict[str, Any]:
        try:
            draw = card_of(type(self))
        except Exception as error:  # noqa: BLE001  a card of another distribution may raise what it likes
            return {"text/plain": shortened(f"{self!r}\n{_why_no_card(self, error)}")}
        with naming(self._digests):
            bundle: dict[str, Any] = draw(self._viewed)._bundle()
            return bundle | {"text/plain": self._shortened(bundle["text/plain"])}

    def _shortened(self, text: str) -> str:
        """Return the view's text, cut to SHORT characters."""
        return shortened(text)

    def told(self) -> dict[str, list[Any]]:
        """Return the table of a card without its own view, as lists by column; empty where there is none."""
        return {}

    @property
    def _viewed(self) -> Any:
        """Return the object that the view draws."""
        return self

    @property
    def _digests(self) -> Digests | None:
        """Return what reads the digests of the modules whose features it may name; None where it knows none."""
        return None


def is_picture(path: str | Path) -> bool:
    """Return whether a file of this name is a picture."""
    return str(path).lower().endswith(PICTURES)


def card_of(kind: type[Displayed]) -> Callable[..., Any]:
    """Return the function that draws results of this kind: from the module `card` beside the module or package `api`
    that names it, or from the core's views. Raises ImportError or AttributeError, or the module's own errors."""
    names_it = next(base for base in kind.__mro__ if "_view" in vars(base))
    package, api, _ = f"{names_it.__module__}.".rpartition(".api.")
    module = f"{package}.card" if api and package != "djinn_jupyter" else VIEWS
    drawing: Callable[..., Any] = getattr(import_module(module), kind._view)
    return drawing


def _why_no_card(result: Displayed, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}"
    return f"The card of {type(result).__name__} cannot be imported; mend or install what it needs ({why})."


def shortened(text: str) -> str:
    """Return a text of at most SHORT characters: the beginning and the end of a longer one, in whole lines if short.
    What a terminal would obey is spelled out."""
    text = shown_lines(text)
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


# Tables of pandas, where it is installed; it is not a dependency of ours.

CELL: Final = 40  # characters of a cell


def frame_of(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return lists by column as a pandas DataFrame. Raises MissingDependency."""
    try:
        frame = import_module("pandas").DataFrame
    except ImportError:
        raise MissingDependency(
            "to_pandas needs pandas, which is not installed here: pip install pandas. columns() has the same table as "
            "lists."
        ) from None
    return frame(columns)


Described = TypeVar("Described", bound=msgspec.Struct)


class Tabular(Displayed):
    """A result whose `columns` are also a pandas DataFrame."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the result as lists by column."""
        raise NotImplementedError

    def told(self) -> dict[str, list[Any]]:
        """Return the columns."""
        return self.columns()

    def __repr__(self) -> str:
        told = {name: [_spelled(one) for one in column] for name, column in self.told().items()}
        rows = list(zip(*([name, *column] for name, column in told.items()), strict=True))
        if len(rows) < 2:
            return "()"
        return "\n".join(aligned(rows))

    def to_pandas(self) -> Any:
        """Return `columns()` as a pandas DataFrame. Raises MissingDependency."""
        return frame_of(self.columns())


class Charted(Displayed):
    """A result whose numbers lie over axes, so that they can be drawn."""

    def figure(self) -> Any:
        """Return a plotly figure of the numbers over their axes. UsageError where they have none."""
        return self._chart().figure()

    def plot(self, ax: Any = None) -> Any:
        """Draw the same with matplotlib into `ax` (for several pictures into as many), by default into a new figure;
        return the Axes. UsageError; MissingDependency without matplotlib."""
        return self._chart().plot(ax)

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the figure: .pdf, .svg or .png by matplotlib at a paper's size, .html by plotly, with all that it
        needs inside. A figure that Djinn wrote is replaced, another file only with `replace`. Return the path.
        UsageError; StorageFailed."""
        written: Path = self._chart().save(path, replace=replace)
        return written

    def _chart(self) -> Any:
        with naming(self._digests):
            return card_of(type(self))(self._viewed).charted()


def is_told_as_table(result: object) -> bool:
    """Return whether the text of a result is its table."""
    return unwrap(type(result).__repr__) is unwrap(Tabular.__repr__)


class Listing(Tabular, tuple[Described, ...]):
    """Descriptions of one kind, one a row: a tuple, and a table. Printing shows only the `shown` fields. `left_out`
    counts omitted descriptions."""

    _shown: tuple[str, ...]
    left_out: int

    def __new__(
        cls, found: Iterable[Described] = (), shown: tuple[str, ...] = (), *, left_out: int = 0
    ) -> Listing[Described]:
        made = super().__new__(cls, found)
        made._shown, made.left_out = shown, left_out
        return made

    def told(self) -> dict[str, list[str]]:
        """Return the shown fields as texts by column; by default all fields except compound ones."""
        table = {name: [attrgetter(name)(one) for one in self] for name in self._shown} or self.columns()
        parts = (tuple, dict, list, msgspec.Struct)
        return {
            name.rpartition(".")[2]: [_spelled(one) for one in column]
            for name, column in table.items()
            if self._shown or not any(isinstance(one, parts) for one in column)
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return the fields of the descriptions as lists by column; no column where there is no description."""
        names = self[0].__struct_fields__ if self else ()
        return in_columns(names, [[getattr(one, name) for name in names] for one in self])


def _spelled(value: object) -> str:
    """Spell a field in a cell: empty for None, and the end of a long text."""
    if value is None or isinstance(value, tuple | dict):
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL else f"...{text[3 - CELL :]}"


def numbered(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the numbers of rows as the columns `value 0`, ...; None where another row has more."""
    width = max(map(len, rows), default=0)
    return in_columns(
        [f"value {number}" for number in range(width)], [[*row, *[None] * (width - len(row))] for row in rows]
    )


def strongest(rows: Iterable[tuple[Any, ...]], count: int) -> list[Any]:
    """Return the `count` rows whose last entry has the largest magnitude, the largest first; NaN is left out."""
    known = (row for row in rows if row[-1] == row[-1])
    return sorted(known, key=lambda row: -abs(row[-1]))[: max(count, 0)]


def in_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return rows as lists by column."""
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}
