"""The record of a watch: the values of all passes, a table, and how it is reproduced."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from djinn_jupyter.api import arrays, likeness, result, tables
from djinn_jupyter.errors import UsageError
from djinn_jupyter.link.channel import Channel, ask_for
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import WatchedLine, spell_watch
from djinn_jupyter.wire.replies import WatchRead

if TYPE_CHECKING:
    import numpy as np


class Watched(result.Result):
    """All recorded passes of a site: `values[i]` covers the absolute `positions[i]` of run `runs[i]`; runs are counted
    from the session's first prompt, run 1. With a `direction` each value has one component a position.

    It has a recipe where its runs were plain or steered by rules, without edits and without `back`."""

    _view = "watched_card"
    ending = ".watched.djinn"
    named = "file of what a watch recorded"
    _words: ClassVar[Mapping[str, str]] = {"values": "pass"}
    reply: WatchRead

    def __post_init__(self) -> None:
        reply = self.reply
        self.site, self.axes, self.positions = reply.watch.site, reply.axes, reply.positions
        self.direction = reply.watch.direction
        self.runs = reply.runs
        self.passes_left_out = reply.watch.passes_left_out
        self._unmade = reply.unmade
        self._lines = () if reply.made is None else tuple(line.tokens for line in reply.made.lines)

    @cached_property
    def values(self) -> tuple[np.ndarray[Any, Any], ...]:  # type: ignore[override]  # passes differ in their length
        """The value of each pass, [positions, ...], in the model's dtype; with a direction [positions]."""
        return tuple(arrays.to_numpy(array) for array in self.reply.values)

    @property
    def compared_values(self) -> np.ndarray[Any, Any]:
        """All values, one pass after the other, flattened."""
        import numpy as np

        return np.concatenate([value.reshape(-1) for value in self.values])

    @property
    def recipe(self) -> dict[str, Any]:
        """All that the values follow from: the circumstances of every measurement, and the passes of each sequence."""
        found = super().recipe
        assert self.reply.made is not None
        fed = [[(one.start, one.end, one.each) for one in line.passes] for line in self.reply.made.lines]
        rules = [list(one.rules) for line in self.reply.made.lines for one in line.passes]
        return {**found, "site": spell_watch(self.site, self.direction), "passes": fed, "rules": rules}

    def check(self) -> None:
        """Raise ValueError where the values do not match the positions or runs, or differ in dtype."""
        read = self.reply
        if [value.shape[:1] for value in read.values] != [(len(at),) for at in read.positions]:
            raise ValueError("its values are not those of its positions")
        if not read.values or len(read.runs) != len(read.values) or not all(read.positions):
            raise ValueError("its passes are not those of its runs")
        if len({value.dtype for value in read.values}) > 1:
            raise ValueError("its values are not of one dtype")
        if read.made is not None and not set(read.runs) <= {line.run for line in read.made.lines}:
            raise ValueError("it has no recipe")

    def _replied_again(self, channel: Channel, reply: WatchRead) -> WatchRead:
        """Return the same passes, recorded while their sequences are replayed."""
        recipe, by = reply.made, result.origin_of(self)
        assert recipe is not None
        likeness.require_modules(channel, by.modules)
        with likeness.session_like(channel, "watch", by) as name:
            found = {line.run: self._fed_again(channel, name, line) for line in recipe.lines}
        if not all(at[-1] in found[run] for run, at in zip(self.runs, self.positions, strict=True)):
            raise UsageError("its positions are not those of its passes: the file is not as it was written.")
        read = [found[run][at[-1]] for run, at in zip(self.runs, self.positions, strict=True)]
        made = None if read[-1].made is None else msgspec.structs.replace(recipe, made=read[-1].made.made)
        values = tuple(value for one in read for value in one.values)
        return msgspec.structs.replace(reply, values=values, made=made, unmade=read[-1].unmade)

    def _fed_again(self, channel: Channel, session: str, line: WatchedLine) -> dict[int, WatchRead]:
        """Return each recorded pass of a sequence, recorded again, by its last position."""
        wanted = {at[-1] for run, at in zip(self.runs, self.positions, strict=True) if run == line.run}
        found = {}
        for one in likeness.passes_of(line.tokens, line.passes):
            if one.end - 1 in wanted:
                ask_for(channel, self._watch(session))
            likeness.feed(channel, session, line.tokens, one)
            if one.end - 1 in wanted:
                request = ask.ReadWatch(session=session, site=self.site, direction=self.direction)
                found[one.end - 1] = ask_for(channel, request)
        return found

    def _watch(self, session: str) -> ask.Watch:
        assert self.reply.made is not None
        cap, along = self.reply.watch.byte_cap, self.reply.made.direction
        return ask.Watch(session=session, site=self.site, byte_cap=cap, fresh=True, direction=along)

    def place_of(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the pass of the number at this index of `compared_values`, its run and position, and its column."""
        left = index[0]
        for number, value in enumerate(self.values):
            if left < value.size:
                row, which = divmod(left, value[0].size)
                at = self.positions[number][row]
                return {"pass": number, "run": self.runs[number], "position": at, "value": which}
            left -= value.size
        raise IndexError(index)

    def columns(self) -> dict[str, list[Any]]:
        """Return the passes as lists by column, with a row for each position of each pass: the number of the pass, its
        run, the position, and its `value`; of several features (heads and features one after the other) `value 0`, ...;
        None where another pass has more."""
        places = [(n, self.runs[n], at) for n, positions in enumerate(self.positions) for at in positions]
        rows = [row.reshape(-1).tolist() for value in self.values for row in value]
        named = tables.numbered(rows) if self.direction is None else tables.in_columns(["value"], rows)
        return tables.in_columns(("pass", "run", "position"), places) | named

    def __len__(self) -> int:
        return len(self.reply.values)

    def __repr__(self) -> str:
        left_out = f", {self.passes_left_out} left out by the byte cap" if self.passes_left_out else ""
        runs = len(set(self.runs))
        told = f"{len(self)} pass{'es' * (len(self) != 1)} of {runs} run{'s' * (runs != 1)}"
        watched = spell_watch(self.site, self.direction)
        return f"Watched {watched}: {told} ({self.axes}){left_out}"
