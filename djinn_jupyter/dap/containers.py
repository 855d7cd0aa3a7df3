"""Containers of a variables view: named fields, and numbered entries that are read a page at a time.

A reference number is valid as long as the stop at which it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.nouns import StopIdentity

CHUNK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A line of a variables view. `asks` is the expression that evaluates to it, if any."""

    name: str
    value: str
    type: str = ""
    inside: Container | None = None
    asks: str | None = None
    writable: bool = False


class Container:
    """Base: an empty container. `fields` are its named variables, `entries` the numbered ones from `start`, at most
    `count`."""

    indexed = 0

    def fields(self) -> Sequence[Variable]:
        return ()

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        return ()

    def change(self, name: str, text: str) -> Variable:
        """Set the variable of that name as the text says and return it; UsageError where it is read-only."""
        raise UsageError(f"{name} is to look at; an edit changes the value of the stopped site.")


class Fixed(Container):
    """A container of given fields, which hold what was read; the others read when they are asked."""

    def __init__(self, *variables: Variable) -> None:
        self._variables = variables

    def fields(self) -> Sequence[Variable]:
        return self._variables


class Listed(Container):
    """A container of `indexed` entries, each made when it is read."""

    def __init__(self, indexed: int, made: Callable[[int, int], Sequence[Variable]]) -> None:
        self.indexed, self._made = indexed, made

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        return self._made(start, count)


class Chunk(Container):
    """A range of another container's entries, for clients that do not request pages."""

    def __init__(self, whole: Container, start: int, count: int) -> None:
        self._whole, self._start, self.indexed = whole, start, count

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        return self._whole.entries(self._start + start, min(count, self.indexed - start))

    def change(self, name: str, text: str) -> Variable:
        return self._whole.change(name, text)


@dataclass(slots=True)
class References:
    """The table from reference numbers to containers; a number is never reused."""

    _next: int = 1
    _kept: dict[int, tuple[int, StopIdentity, Container]] = field(default_factory=dict)

    def keep(self, owner: int, read_from: StopIdentity, container: Container | None) -> int:
        """Give a container of the thread `owner`, read from its stop, a number and return it; 0 for no container."""
        if container is None:
            return 0
        number, self._next = self._next, self._next + 1
        self._kept[number] = (owner, read_from, container)
        return number

    def forget(self, owner: int) -> None:
        """Drop all containers of a thread, after it has moved on from its stop."""
        self._kept = {number: kept for number, kept in self._kept.items() if kept[0] != owner}

    def find(self, number: int) -> tuple[int, StopIdentity, Container]:
        found = self._kept.get(number)
        if found is None:
            raise UsageError(
                f"The variables {number} are of a stop that is past; ask for the scopes of the present one."
            )
        return found

    def spell(self, owner: int, read_from: StopIdentity, variable: Variable) -> dict[str, Any]:
        """Return a variable in the protocol's form."""
        inside = variable.inside
        spelled: dict[str, Any] = {
            "name": variable.name,
            "value": variable.value,
            "variablesReference": self.keep(owner, read_from, inside),
        }
        if variable.type:
            spelled["type"] = variable.type
        if variable.asks is not None:
            spelled["evaluateName"] = variable.asks
        if not variable.writable:
            spelled["presentationHint"] = {"kind": "data", "attributes": ["readOnly"]}
        return {**spelled, **sizes(inside)}


def sizes(container: Container | None) -> dict[str, int]:
    """Return the number of entries, for clients that request pages."""
    return {} if container is None or not container.indexed else {"indexedVariables": container.indexed}


def page(container: Container, wanted: str | None, start: int, count: int, *, paged: bool) -> Sequence[Variable]:
    """Return the requested part of a container; `count` 0 is all. A client without paging gets long lists in chunks."""
    fields = container.fields() if wanted != "indexed" else ()
    if wanted == "named" or not container.indexed:
        return fields
    if not count and not paged and container.indexed > CHUNK:
        starts = range(0, container.indexed, CHUNK)
        return [*fields, *(_chunk(container, at, min(CHUNK, container.indexed - at)) for at in starts)]
    left = max(0, container.indexed - start)
    return [*fields, *container.entries(start, min(count, left) if count else left)]


def _chunk(container: Container, start: int, count: int) -> Variable:
    return Variable(
        name=f"[{start}..{start + count - 1}]", value=f"{count} entries", inside=Chunk(container, start, count)
    )
