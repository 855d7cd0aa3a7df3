"""Containers of a variables view: named fields, and numbered entries that are read a page at a time.

A reference number is valid as long as the stop at which it was given.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from djinn_jupyter.api import arrays, edits, looks
from djinn_jupyter.api.edits import parse_edit
from djinn_jupyter.api.names import labelled
from djinn_jupyter.api.patches import Patch
from djinn_jupyter.api.session import RemoteSession
from djinn_jupyter.api.stops import Paused, read_figures
from djinn_jupyter.editors.dap import breakpoints
from djinn_jupyter.editors.dap.breakpoints import AnyArray
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import FiguresRead
from djinn_jupyter.wire.sites import Site, parse_site, spell_selector
from djinn_jupyter.wire.texts import in_quotes

FORMS = "a number, a list of numbers, `* 0.9`, `+ 1`, or an edit such as `scale 0.9` or `zero`"


def read_change(text: str) -> Edit | Patch:
    """Return the edit that a text typed over a value spells: `0`, `[0.1, 0.2]`, `* 0.9`, `+ 1`, or `scale 0.9`."""
    text = text.strip()
    if text.startswith(("*", "+")):
        amount = read_number(text[1:])
        return edits.scale(amount) if text.startswith("*") else edits.add(amount)
    if text.partition(" ")[0] in edits.KINDS:
        return parse_edit(words(text), value=read_value, find=str)
    try:
        return edits.set_to(read_value(text))
    except UsageError:
        raise UsageError(f"{text!r} is no value to put there; write {FORMS}.") from None


def words(text: str) -> list[str]:
    try:
        return shlex.split(text, posix=False)
    except ValueError:
        raise UsageError(f"A quote in this line is not closed: {text}") from None


def read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text.strip()!r} is not a number; write {FORMS}.") from None


def read_value(text: str) -> Any:
    """Parse a number or a list of numbers."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise UsageError(f"{text!r} is neither a number nor a list of numbers.")
    return found


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
    """Base: an empty container. `fields` are its named variables, `entries` at most `count` numbered ones from
    `start`."""

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


# The value of a site as a container: positions, then heads or features, down to single numbers. The value of the
# stopped site can be edited.


class StoppedValues:
    """A stopped pass and the values read from it, all of the displayed stop identity: figures of values, and values a
    position at a time, on demand. `refresh` drops them."""

    def __init__(self, session: RemoteSession, stop: Paused) -> None:
        self.session, self.stop = session, stop
        self._figures: dict[str, FiguresRead] = {}
        self._rows: dict[tuple[str, int], AnyArray] = {}

    def figures(self, site: str) -> FiguresRead:
        """Return the figures of the value at a site."""
        if site not in self._figures:
            read = read_figures(self.session, site)
            self.check(read.stop)
            self._figures[site] = read
        return self._figures[site]

    def figures_of_each(self, site: str, positions: tuple[int, ...]) -> AnyArray:
        """Return the figures of each of the positions: float64 [positions, figures]."""
        read = read_figures(self.session, site, positions=positions, each=True)
        self.check(read.stop)
        assert read.each is not None
        return arrays.to_numpy(read.each)

    def row(self, site: str, position: int) -> AnyArray:
        """Return the value at one position of a site."""
        if (site, position) not in self._rows:
            self._rows[site, position] = self._read(site, (position,))[0]
        return self._rows[site, position]

    def whole(self, site: str) -> AnyArray:
        """Return the value at a site, bit for bit."""
        return self._read(site, None)

    def _read(self, site: str, positions: tuple[int, ...] | None) -> AnyArray:
        read = self.session.inspect(site, positions)
        self.check(read.reply.snapshot.stop)
        return read.value

    @property
    def identity(self) -> StopIdentity:
        return self.stop.reply.stop

    @property
    def position(self) -> int:
        """The position of expressions: the one at which the breakpoint's condition held, else the last."""
        matched = self.stop.reply.matched
        return matched if matched is not None else self.stop.positions[-1]

    def evaluate(self, expression: str) -> bool | int | float | str:
        """Return the value of an expression of the condition language at the position of the stop."""
        read = self.session.evaluated(expression, self.position)
        self.check(read.stop)
        return read.value

    def effect(self) -> looks.Effect:
        read = self.session.effect()
        self.check(read.reply.stop)
        return read

    def lens(self, top: int = 5, *, site: str | None = None, positions: tuple[int, ...] | None = None) -> looks.Lens:
        read = self.session.lens(top, site=site, positions=positions)
        self.check(read.reply.stop)
        return read

    def check(self, read_from: StopIdentity | None) -> None:
        """Raise IllegalMove where a value is not of the displayed stop: an event will report the present one."""
        if read_from != self.identity:
            raise IllegalMove(
                f"Session {in_quotes(self.session.label)} has moved on or was edited; ask for its present stop."
            )

    def refresh(self) -> None:
        """Read the stop from the engine again and drop the fetched values, after an edit."""
        self.stop = self.session.stop
        self._figures.clear()
        self._rows.clear()

    @property
    def writable(self) -> str:
        """The site whose value an edit changes: the stopped one, without a selector."""
        return str(parse_site(self.stop.site).whole())


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePart:
    """A part of the stopped value: all of it, a position, a head or feature of it, or an entry of a head."""

    look: StoppedValues
    site: Site
    position: int | None = None
    unit: int | None = None
    entry: int | None = None

    def write(self, text: str, present: AnyArray | None = None) -> None:
        """Edit this part. `present` is the value of the innermost axis that contains it, for an entry of that."""
        session, site = self.look.session, self.site
        if self.unit is not None:
            site = parse_site(f"{site.whole()}[{spell_selector((self.unit,))}]")
        if self.entry is None:
            edit = read_change(text)
        else:
            assert present is not None
            changed = breakpoints.wide(present).copy()
            changed[self.entry] = read_number(text)
            edit = edits.set_to(changed[None, None, :])
        session.edit(edit, self.position, str(site), stop=self.look.identity)
        self.look.refresh()


class Axis(Container):
    """One axis of the value at a position, which `read` returns; each entry contains the inner axes. `numbers` name the
    entries; `place` is None where the value is not the stopped one."""

    def __init__(
        self, read: Callable[[], AnyArray], *, numbers: Sequence[int], place: ValuePart | None, depth: int = 1
    ) -> None:
        self._read, self._numbers, self._place, self._depth = read, numbers, place, depth
        self.indexed = len(numbers)

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        return [self._entry(row) for row in range(start, min(start + count, self.indexed))]

    def change(self, name: str, text: str) -> Variable:
        row = row_of(name, self._numbers)
        place = self._placed(row)
        if place is None:
            return super().change(name, text)
        place.write(text, self._read())
        return self._entry(row)

    def _entry(self, row: int) -> Variable:
        """Read again, so that all unfolded parts show an edit of the stop."""
        found = self._read()[row]
        return Variable(
            name=f"[{self._numbers[row]}]",
            value=breakpoints.summary(found),
            type=f"{found.dtype}{breakpoints.shape(found) if found.ndim else ''}",
            inside=self._within(row, len(found)) if found.ndim else None,
            writable=self._place is not None,
        )

    def _within(self, row: int, size: int) -> Container:
        return Axis(lambda: self._read()[row], numbers=range(size), place=self._placed(row), depth=self._depth + 1)

    def _placed(self, row: int) -> ValuePart | None:
        if self._place is None:
            return None
        number = self._numbers[row]
        return replace(self._place, unit=number) if self._depth == 1 else replace(self._place, entry=number)


class Positions(Container):
    """The value at a site, position by position: the figures of each, and the values of those that are unfolded.
    `place` is None where it is not the stopped value."""

    def __init__(self, look: StoppedValues, site: Site, spelled: str, place: ValuePart | None) -> None:
        self._look, self._site, self._spelled, self._place = look, site, spelled, place
        read = look.figures(spelled)
        self._positions, self._inner, self._dtype = read.positions, read.shape[1:], read.dtype
        self.indexed = len(self._positions)

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        chosen = self._positions[start : start + count]
        if not chosen:
            return []
        figures = self._look.figures_of_each(self._spelled, chosen)
        return [self._entry(position, of) for position, of in zip(chosen, figures.tolist(), strict=True)]

    def change(self, name: str, text: str) -> Variable:
        position = self._positions[row_of(name, self._positions)]
        if self._place is None:
            return super().change(name, text)
        replace(self._place, position=position).write(text)
        (figures,) = self._look.figures_of_each(self._spelled, (position,)).tolist()
        return self._entry(position, figures)

    def _entry(self, position: int, figures: Sequence[float]) -> Variable:
        found = breakpoints.in_order(figures)
        said = breakpoints.number(found["mean"]) if math.prod(self._inner) == 1 else breakpoints.spelled(found)
        return Variable(
            name=f"[{position}]",
            value=f"{self._look.stop.texts[position]!r}  {said}",
            type=f"{self._dtype}{breakpoints.sizes(self._inner) if self._inner else ''}",
            inside=self._within(position) if self._inner else None,
            writable=self._place is not None,
        )

    def _within(self, position: int) -> Container:
        chosen = self._site.selector
        return Axis(
            lambda: self._look.row(self._spelled, position),
            numbers=range(self._inner[0]) if chosen is None else chosen,
            place=None if self._place is None else replace(self._place, position=position),
        )


def row_of(name: str, numbers: Sequence[int]) -> int:
    """Return the place of an entry among those that are numbered so. UsageError where there is none."""
    number = name.strip("[]")
    if not number.isdecimal() or int(number) not in numbers:
        raise UsageError(f"There is no {name} here; there are [{numbers[0]}] to [{numbers[-1]}].")
    return list(numbers).index(int(number))


class Activation(Container):
    """The value at a site with its statistics; `site` None is the stopped one, where it can be edited."""

    def __init__(self, look: StoppedValues, site: str | None = None) -> None:
        self.look, self.site = look, site

    @cached_property
    def spelled(self) -> str:
        return self.site if self.site is not None else self.look.stop.site

    def summary(self) -> str:
        found, alone = breakpoints.in_order(self._read.all), math.prod(self._read.shape) == 1
        return f"{self._kind}  {breakpoints.number(found['mean']) if alone else breakpoints.spelled(found)}"

    def rows(self) -> Positions:
        """Return the value itself, position by position."""
        place = ValuePart(look=self.look, site=self._named) if self._editable else None
        return Positions(self.look, self._named, self.spelled, place)

    def fields(self) -> Sequence[Variable]:
        read, stop = self._read, self.look.stop
        found = [
            Variable(name="site", value=read.site),
            self._value(),
            Variable(name="shape", value=breakpoints.sizes(read.shape)),
            Variable(name="axes", value=read.axes),
            Variable(name="dtype", value=read.dtype),
        ]
        found += [Variable(name=n, value=breakpoints.number(v)) for n, v in self._figures().items()]
        found.append(Variable(name="exactness", value=read.exactness))
        if self.site is None and stop.edits:
            found.append(Variable(name="edits", value=labelled("; ".join(stop.edits))))
        return found

    def _figures(self) -> dict[str, float]:
        """Return the figures by name. `norm` is the number that a watch or a condition reads, one position's."""
        whole = breakpoints.in_order(self._read.all)
        position, count = self.look.position, len(self._read.positions)
        if count == 1:
            return whole
        norm = whole.pop("norm")
        if position in self._read.positions:
            (figures,) = self.look.figures_of_each(self.spelled, (position,)).tolist()
            whole["norm"] = breakpoints.in_order(figures)["norm"]
        return {**whole, f"norm of {count} positions": norm}

    def change(self, name: str, text: str) -> Variable:
        if name != "value" or not self._editable:
            return super().change(name, text)
        ValuePart(look=self.look, site=self._named).write(text)
        return self._value()

    def _value(self) -> Variable:
        return Variable(
            name="value",
            value=self.summary(),
            type=self._kind,
            inside=self.rows(),
            asks=self.spelled,
            writable=self._editable,
        )

    @property
    def _kind(self) -> str:
        return f"{self._read.dtype}{breakpoints.sizes(self._read.shape)}"

    @property
    def _named(self) -> Site:
        """The site in the engine's spelling: the model defines what another tool's name means."""
        return parse_site(self._read.site)

    @property
    def _editable(self) -> bool:
        return str(self._named.whole()) == self.look.writable

    @property
    def _read(self) -> FiguresRead:
        return self.look.figures(self.spelled)
