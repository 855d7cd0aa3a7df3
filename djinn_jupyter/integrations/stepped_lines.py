"""Lines that run side by side, each in a session of its own, and stop where the caller says while they run: it looks at
a stop, edits it, and names the sites of the next one. Knows sites and numpy arrays, and no other tool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from djinn_jupyter.client.arrays import shared_numpy
from djinn_jupyter.client.connection.channel import Channel, expect
from djinn_jupyter.errors import DjinnError, EngineError, UnknownSite, UsageError
from djinn_jupyter.integrations.hooked_lines import LOGITS, put_of
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.nouns import Sampling

Values = np.ndarray[Any, Any]
GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The place of lines that stand: a site, in the pass that makes the token after `step` new ones; their numbers, and
    the tokens that each has drawn so far."""

    site: str
    step: int
    lines: tuple[int, ...]
    drawn: Mapping[int, tuple[int, ...]]


class SteppedLines:
    """The sessions in which lines run. `opened` opens that of line n and returns its name."""

    def __init__(self, channel: Channel, opened: Callable[[int], str]) -> None:
        self._channel, self._opened = channel, opened
        self._names: list[str] = []
        self._armed: list[frozenset[str]] = []
        self._closing: list[Future[replies.Reply]] = []
        self._given: tuple[tuple[int, ...], ...] = ()
        self._at: dict[int, replies.Paused] = {}
        self.ended: dict[int, replies.Finished] = {}

    def arm(self, count: int, halts: Collection[str]) -> dict[str, UnknownSite]:
        """Have the sessions of so many lines stop at these sites alone. Return those at which no pass of this model can
        stop, and why."""
        self._open(count)
        wanted = frozenset(halts)
        asked = [
            (number, site, self._channel.ask(ask.SetBreakpoint(session=self._names[number], site=site)))
            for number in range(count)
            for site in sorted(wanted - self._armed[number])
        ]
        cleared = [self._clear(number, wanted) for number in range(count) if self._armed[number] - wanted]
        refused = {site: error for number, site, reply in asked if (error := self._set(number, site, reply))}
        for reply in cleared:
            expect(reply.result(), replies.Cleared)
        return refused

    def run(
        self, lines: Sequence[Sequence[int]], *, max_new_tokens: int = 0, sampling: Sampling = GREEDY
    ) -> Standing | None:
        """Run these lines to their first stop, or to the end: None."""
        self._given, self._at, self.ended = tuple(map(tuple, lines)), {}, {}
        return self._moved(
            {
                number: ask.Run(
                    session=self._names[number], tokens=line, max_new_tokens=max_new_tokens, sampling=sampling
                )
                for number, line in enumerate(self._given)
            }
        )

    def go_on(self) -> Standing | None:
        """Run the lines that stand on to their next stop, or to the end: None."""
        return self._moved({number: ask.Resume(session=self._names[number]) for number in self._at})

    def values(self) -> list[Values]:
        """Return the values at the stop, [positions, ...], of each line that stands; they are only read."""
        asked = [self._channel.ask(ask.Inspect(session=self._names[number])) for number in self._at]
        return [shared_numpy(expect(reply.result(), replies.Inspected).snapshot.value) for reply in asked]

    def logits(self) -> list[Values]:
        """Return the logits of all positions, fp32, as each pass would go on from where it stands, edits included.
        UsageError where the lines have ended."""
        if not self._at:
            raise UsageError("The logits of all positions are read at a stop of the pass, and this pass has ended.")
        asked = [
            self._channel.ask(ask.ReadPass(session=self._names[number], ahead=True, logits=True)) for number in self._at
        ]
        read = [expect(reply.result(), replies.PassRead).logits for reply in asked]
        return [shared_numpy(one) for one in read if one is not None]

    def edit(self, here: Sequence[Values], changed: Sequence[Values]) -> None:
        """Put values in the place of those at the stop, line by line, where bits of theirs differ."""
        asked = [
            self._channel.ask(ask.ApplyEdit(session=self._names[number], edit=edit[0], positions=edit[1]))
            for number, old, new in zip(self._at, here, changed, strict=True)
            if (edit := _edit(old, new, self._at[number])) is not None
        ]
        for reply in asked:
            expect(reply.result(), replies.Edited)

    def abandon(self) -> None:
        """Close the sessions without waiting for them: what they run ends, and the next lines have others."""
        self._closing += [self._channel.ask(ask.Close(session=name)) for name in self._names]
        self._names, self._armed, self._at = [], [], {}

    def close(self) -> None:
        """Close the sessions, those that were abandoned too."""
        self.abandon()
        for closed in self._closing:
            with suppress(DjinnError):  # another client closed it, or the engine is gone
                closed.result()
        self._closing = []

    def _open(self, count: int) -> None:
        while len(self._names) < count:
            self._names.append(self._opened(len(self._names)))
            self._armed.append(frozenset())

    def _clear(self, number: int, wanted: frozenset[str]) -> Future[replies.Reply]:
        old = self._armed[number] - wanted
        self._armed[number] -= old
        return self._channel.ask(ask.ClearBreakpoints(session=self._names[number], sites=tuple(sorted(old))))

    def _set(self, number: int, site: str, reply: Future[replies.Reply]) -> UnknownSite | None:
        try:
            expect(reply.result(), replies.BreakpointSet)
        except UnknownSite as error:
            return error
        self._armed[number] |= {site}
        return None

    def _moved(self, requests: Mapping[int, ask.Request]) -> Standing | None:
        asked = {number: self._channel.ask(request) for number, request in requests.items()}
        came = {number: reply.result() for number, reply in asked.items()}
        self._at = {number: reply for number, reply in came.items() if isinstance(reply, replies.Paused)}
        for number, reply in came.items():
            if number not in self._at:
                self.ended[number] = expect(reply, replies.Finished)
        for number, stop in self._at.items():
            _require_whole(stop, self._given[number])
        return self._standing()

    def _standing(self) -> Standing | None:
        if not self._at:
            return None
        places = {(stop.site, stop.step) for stop in self._at.values()}
        if len(places) != 1:
            raise EngineError(f"Lines that run side by side stand at {', '.join(sorted(site for site, _ in places))}.")
        [(site, step)] = places
        drawn = {number: stop.tokens[len(self._given[number]) :] for number, stop in self._at.items()}
        drawn |= {number: stop.tokens for number, stop in self.ended.items()}
        return Standing(site=site, step=step, lines=tuple(self._at), drawn=drawn)


def _require_whole(stop: replies.Paused, line: tuple[int, ...]) -> None:
    """Raise UsageError where a prompt is run in parts: what is read at a stop is the part, and not the line."""
    if stop.step == 0 and stop.site != LOGITS and len(stop.positions) != len(line):
        raise UsageError(
            f"A pass at {stop.site} has {len(stop.positions)} of {len(line)} positions; run shorter lines."
        )


def _edit(old: Values, new: Values, stop: replies.Paused) -> tuple[Set, tuple[int, ...] | None] | None:
    if new.shape != old.shape:
        raise UsageError(f"A value of shape {old.shape} at {stop.site} was replaced by one of shape {new.shape}.")
    put = put_of(old, new.astype(old.dtype, copy=False))
    if put is None:
        return None
    value, rows = put
    return Set(value=value), None if rows is None else tuple(stop.positions[row] for row in rows)
