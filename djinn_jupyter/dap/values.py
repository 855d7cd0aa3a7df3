"""The value of a site as a container: positions, then heads or features, down to single numbers. The value of the
stopped site can be edited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from djinn_jupyter.client import edits
from djinn_jupyter.client.looks import Effect, Lens
from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Paused
from djinn_jupyter.client.views import Snapshot
from djinn_jupyter.dap import summaries
from djinn_jupyter.dap.changes import read_change, read_number
from djinn_jupyter.dap.containers import Container, Variable
from djinn_jupyter.dap.summaries import AnyArray
from djinn_jupyter.errors import IllegalMove, UsageError
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.sites import Site, parse_site, spell_selector
from djinn_jupyter.wire.texts import in_quotes

FETCHED_ENTRIES = 2**22


class StoppedValues:
    """A stopped pass and the values fetched from it, all of the stop identity that is shown. `refresh` drops them."""

    def __init__(self, session: RemoteSession, stop: Paused) -> None:
        self.session, self.stop = session, stop
        self._fetched: dict[str | None, Snapshot] = {}

    def snapshot(self, site: str | None = None) -> Snapshot:
        """Return the value at a site, by default the stopped one; of a very long pass only the last positions."""
        if site not in self._fetched:
            read = self.session.inspect(site, self._positions())
            self.check(read.reply.snapshot.stop)
            self._fetched[site] = read
        return self._fetched[site]

    @property
    def identity(self) -> StopIdentity:
        return self.stop.reply.stop

    def evaluate(self, expression: str) -> bool | int | float | str:
        """Return the value of an expression of the condition language at the position of the stop."""
        matched = self.stop.reply.matched
        read = self.session.evaluated(expression, matched if matched is not None else self.stop.positions[-1])
        self.check(read.stop)
        return read.value

    def effect(self) -> Effect:
        read = self.session.effect()
        self.check(read.reply.stop)
        return read

    def lens(self, top: int = 5, *, site: str | None = None, positions: tuple[int, ...] | None = None) -> Lens:
        read = self.session.lens(top, site=site, positions=positions)
        self.check(read.reply.stop)
        return read

    def check(self, read_from: StopIdentity | None) -> None:
        """Raise IllegalMove where a value is not of the stop shown: an event will tell the editor of the present
        one."""
        if read_from != self.identity:
            raise IllegalMove(
                f"Session {in_quotes(self.session.label)} has moved on or was edited; ask for its present stop."
            )

    def _positions(self) -> tuple[int, ...] | None:
        entries = 1
        for size in self.stop.shape[1:]:
            entries *= size
        rows = max(1, FETCHED_ENTRIES // max(1, entries))
        return self.stop.positions[-rows:] if len(self.stop.positions) > rows else None

    def refresh(self) -> None:
        """Read the stop from the engine again and drop the fetched values, after an edit."""
        self.stop = self.session.stop
        self._fetched.clear()

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

    def write(self, text: str, present: AnyArray) -> None:
        """Edit this part. `present` is the value of the innermost axis that contains it."""
        session, site = self.look.session, self.site
        if self.unit is not None:
            site = replace_selector(site, (self.unit,))
        if self.entry is None:
            edit = read_change(text)
        else:
            changed = summaries.wide(present).copy()
            changed[self.entry] = read_number(text)
            edit = edits.set_to(changed[None, None, :])
        session.edit(edit, self.position, str(site), stop=self.look.identity)
        self.look.refresh()


def replace_selector(site: Site, selector: tuple[int, ...]) -> Site:
    return parse_site(f"{site.whole()}[{spell_selector(selector)}]")


class Axis(Container):
    """One axis of a value, which `read` returns; each entry contains the inner axes. `labels` are shown beside the
    entries, `numbers` name the entries; `place` is None where the value is not the stopped one."""

    def __init__(
        self,
        read: Callable[[], AnyArray],
        *,
        numbers: Sequence[int],
        labels: Sequence[str] = (),
        selector: tuple[int, ...] | None = None,
        place: ValuePart | None = None,
        depth: int = 0,
    ) -> None:
        self._read, self._numbers, self._labels = read, numbers, labels
        self._selector, self._place, self._depth = selector, place, depth
        self.indexed = len(numbers)

    @property
    def _values(self) -> AnyArray:
        """Read anew at each use, so that an edit of the stop is seen in all that is unfolded of it."""
        return self._read()

    def entries(self, start: int, count: int) -> Sequence[Variable]:
        return [self._entry(row) for row in range(start, min(start + count, self.indexed))]

    def change(self, name: str, text: str) -> Variable:
        row = self._row(name)
        place = self._placed(row)
        if place is None:
            return super().change(name, text)
        place.write(text, self._values)
        again = place.look.snapshot(str(place.site)).value
        return self._entry(row, _part(again, self._path(place)))

    def _row(self, name: str) -> int:
        number = name.strip("[]")
        if not number.isdecimal() or int(number) not in self._numbers:
            raise UsageError(f"There is no {name} here; there are [{self._numbers[0]}] to [{self._numbers[-1]}].")
        return list(self._numbers).index(int(number))

    def _entry(self, row: int, values: AnyArray | None = None) -> Variable:
        found = self._values[row] if values is None else values
        label = f"{self._labels[row]}  " if self._labels else ""
        return Variable(
            name=f"[{self._numbers[row]}]",
            value=label + summaries.summary(found),
            type=f"{found.dtype}{summaries.shape(found) if found.ndim else ''}",
            inside=self._within(row, len(found)) if found.ndim else None,
            writable=self._place is not None,
        )

    def _within(self, row: int, size: int) -> Container:
        selected = self._depth == 0 and self._selector is not None
        numbers = self._selector if selected and self._selector is not None else range(size)
        return Axis(lambda: self._values[row], numbers=numbers, place=self._placed(row), depth=self._depth + 1)

    def _placed(self, row: int) -> ValuePart | None:
        number, place = self._numbers[row], self._place
        match self._depth:
            case _ if place is None:
                return None
            case 0:
                return replace(place, position=number)
            case 1:
                return replace(place, unit=number)
            case _:
                return replace(place, entry=number)

    def _path(self, place: ValuePart) -> tuple[int, ...]:
        """Return the row numbers in the whole value that lead to a place."""
        first = place.look.snapshot(str(place.site)).positions
        assert place.position is not None
        steps: list[int] = [first.index(place.position)]
        for number in (place.unit, place.entry):
            if number is not None:
                chosen = place.site.selector
                steps.append(chosen.index(number) if chosen is not None and len(steps) == 1 else number)
        return tuple(steps)


def _part(values: AnyArray, path: tuple[int, ...]) -> AnyArray:
    for step in path:
        values = values[step]
    return values


class Activation(Container):
    """The value at a site with its statistics; `site` None is the stopped one. The stopped site's value can be
    edited."""

    def __init__(self, look: StoppedValues, site: str | None = None) -> None:
        self.look, self.site = look, site

    @cached_property
    def spelled(self) -> str:
        return self.site if self.site is not None else self.look.stop.site

    def summary(self) -> str:
        values = self._snapshot.value
        return f"{self._snapshot.dtype}{summaries.shape(values)}  {summaries.summary(values)}"

    def rows(self) -> Axis:
        """Return the value itself, position by position."""
        snapshot, stop = self._snapshot, self.look.stop
        site = parse_site(self.spelled)
        return Axis(
            lambda: self._snapshot.value,
            numbers=snapshot.positions,
            labels=[repr(stop.texts[position]) for position in snapshot.positions],
            selector=site.selector,
            place=ValuePart(look=self.look, site=site) if self._editable(site) else None,
        )

    def fields(self) -> Sequence[Variable]:
        snapshot, stop = self._snapshot, self.look.stop
        values = snapshot.value
        found = [
            Variable(name="site", value=snapshot.site),
            self._value(),
            Variable(name="shape", value=summaries.shape(values)),
            Variable(name="axes", value=snapshot.axes),
            Variable(name="dtype", value=snapshot.dtype),
        ]
        found += [Variable(name=n, value=summaries.number(v)) for n, v in summaries.statistics(values).items()]
        found.append(Variable(name="exactness", value=snapshot.exactness))
        if self.site is None and stop.edits:
            found.append(Variable(name="edits", value="; ".join(stop.edits)))
        return found

    def change(self, name: str, text: str) -> Variable:
        site = parse_site(self.spelled)
        if name != "value" or not self._editable(site):
            return super().change(name, text)
        ValuePart(look=self.look, site=site).write(text, self._snapshot.value)
        return self._value()

    def _value(self) -> Variable:
        editable = self._editable(parse_site(self.spelled))
        return Variable(
            name="value",
            value=self.summary(),
            type=f"{self._snapshot.dtype}{summaries.shape(self._snapshot.value)}",
            inside=self.rows(),
            asks=self.spelled,
            writable=editable,
        )

    def _editable(self, site: Site) -> bool:
        return str(site.whole()) == self.look.writable

    @property
    def _snapshot(self) -> Snapshot:
        return self.look.snapshot(self.spelled)
