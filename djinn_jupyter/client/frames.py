"""Tables of pandas, where it is installed: no dependency of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

import msgspec

from djinn_jupyter.errors import MissingDependency


def frame_of(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return lists by column as a table. Raises MissingDependency."""
    try:
        frame = import_module("pandas").DataFrame
    except ImportError:
        raise MissingDependency(
            "to_pandas needs pandas, which is not installed here: pip install pandas. columns() has the same table as "
            "lists."
        ) from None
    return frame(columns)


Described = TypeVar("Described", bound=msgspec.Struct)


class ByColumn(Protocol):
    """A reading that is a table."""

    def columns(self) -> dict[str, list[Any]]:
        """Return it as lists by column."""


class Tabular:
    """A reading whose `columns` are also a table of pandas."""

    def to_pandas(self: ByColumn) -> Any:
        """Return `columns()` as a table of pandas. Raises MissingDependency."""
        return frame_of(self.columns())


class Listing(tuple[Described, ...], Tabular):
    """Descriptions of one kind, one a row: a tuple of them, and a table."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the fields of the descriptions as lists by column; no column where there is no description."""
        names = self[0].__struct_fields__ if self else ()
        return in_columns(names, [[getattr(one, name) for name in names] for one in self])


def numbered(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the numbers of rows as the columns `value 0`, ...; None where another row has more."""
    width = max(map(len, rows), default=0)
    return in_columns(
        [f"value {number}" for number in range(width)], [[*row, *[None] * (width - len(row))] for row in rows]
    )


def in_columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Return rows as lists by column."""
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}
