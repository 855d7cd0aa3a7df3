"""Lines that run side by side, each in a session of its own, and stop where the caller says while they run: it looks at
a stop, edits it, and names the sites of the next one. An edit and the sites go with the request to go on, whose reply
has the values of the next stop. Knows sites and numpy arrays, and no other tool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from djinn_jupyter.client.arrays import shared_numpy
from djinn_jupyter.client.connection.channel import Channel
from djinn_jupyter.errors import DjinnError, EngineError, UnknownSite, UsageError
from djinn_jupyter.integrations.hooked_lines import LOGITS, Put, given, put_of
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import Sampling

Values = np.ndarray[Any, Any]
GREEDY: Final = Sampling()
Move = ask.RequestBase[replies.Paused | replies.Reached | replies.Finished]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The place of lines that stand: a site, in the pass that makes the token after `step` new ones; their numbers, and
    the tokens that each has drawn so far."""

    site: str
    step: int
    lines: tuple[int, ...]
    drawn: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """A line's stop, as a reply tells of it: the positions of the pass, and the value where it came along."""

    site: str
    step: int
    positions: tuple[int, ...]
    drawn: tuple[int, ...]
    value: Values | None = None

    @classmethod
    def told(cls, reply: replies.Paused | replies.Reached, line: tuple[int, ...]) -> _Stop:
        if isinstance(reply, replies.Paused):
            drawn = reply.tokens[len(line) :]
            return cls(site=reply.site, step=reply.step, positions=reply.positions, drawn=drawn)
        value = shared_numpy(reply.snapshot.value)
        return cls(site=reply.snapshot.site, step=reply.step, positions=reply.positions, drawn=reply.drawn, value=value)


class SteppedLines:
    """The sessions in which lines run. `opened` opens that of line n and returns its name."""

    def __init__(self, channel: Channel, opened: Callable[[int], str]) -> None:
        self._channel, self._opened = channel, opened
        self._names: list[str] = []
        self._armed: list[frozenset[str]] = []
        self._known: set[str] = set()  # sites at which passes of this model stop
        self._next: frozenset[str] | None = None  # the sites to stop at from here on, where others are armed
        self._closing: list[Future[replies.Closed]] = []
        self._given: tuple[tuple[int, ...], ...] = ()
        self._at: dict[int, _Stop] = {}
        self._puts: dict[int, Put] = {}  # what the lines that stand go on with in the place of their values
        self.ended: dict[int, replies.Finished] = {}

    def arm(self, count: int, halts: Collection[str]) -> dict[str, UnknownSite]:
        """Have the sessions of so many lines stop at these sites alone. Return those at which no pass of this model can
        stop, and why."""
        self._open(count)
        wanted = frozenset(halts)
        self._next = wanted if self._at and wanted <= self._known else None
        if self._next is not None:
            return {}
        asked = [
            (number, site, self._channel.ask(ask.SetBreakpoint(session=self._names[number], site=site)))
            for number in range(count)
            for site in sorted(wanted - self._armed[number])
        ]
        cleared = [self._clear(number, wanted) for number in range(count) if self._armed[number] - wanted]
        refused = {site: error for number, site, reply in asked if (error := self._set(number, site, reply))}
        for reply in cleared:
            reply.result()
        return refused

    def run(
        self, lines: Sequence[Sequence[int]], *, max_new_tokens: int = 0, sampling: Sampling = GREEDY
    ) -> Standing | None:
        """Run these lines to their first stop, or to the end: None. Line n draws with `sampling.seed` + n."""
        self._given, self._at, self._puts, self.ended = tuple(map(tuple, lines)), {}, {}, {}
        if self._next is not None:
            self.arm(len(self._given), self._next)
        return self._moved(
            {
                number: ask.Run(
                    session=self._names[number],
                    tokens=line,
                    max_new_tokens=max_new_tokens,
                    sampling=msgspec.structs.replace(sampling, seed=sampling.seed + number),
                )
                for number, line in enumerate(self._given)
            }
        )

    def go_on(self) -> Standing | None:
        """Run the lines that stand on to their next stop, or to the end: None."""
        halts = None if self._next is None else tuple(sorted(self._next))
        requests = {
            number: ask.ResumeWith(session=self._names[number], halts=halts, **given(self._puts.get(number)))
            for number in self._at
        }
        if self._next is not None:
            self._armed = [self._next if n in requests else armed for n, armed in enumerate(self._armed)]
        self._puts, self._next = {}, None
        return self._moved(requests)

    def values(self) -> list[Values]:
        """Return the values at the stop, [positions, ...], of each line that stands; they are only read."""
        asked = {
            number: self._channel.ask(ask.Inspect(session=self._names[number]))
            for number, stop in self._at.items()
            if stop.value is None
        }
        for number, reply in asked.items():
            value = shared_numpy(reply.result().snapshot.value)
            self._at[number] = replace(self._at[number], value=value)
        return [stop.value for stop in self._at.values() if stop.value is not None]

    def logits(self) -> list[Values]:
        """Return the logits of all positions, fp32, as each pass would go on from where it stands, edits included.
        UsageError where the lines have ended."""
        if not self._at:
            raise UsageError("The logits of all positions are read at a stop of the pass, and this pass has ended.")
        asked = [
            self._channel.ask(
                ask.ReadPass(session=self._names[number], ahead=True, logits=True, **given(self._puts.get(number)))
            )
            for number in self._at
        ]
        read = [reply.result().logits for reply in asked]
        return [shared_numpy(one) for one in read if one is not None]

    def edit(self, here: Sequence[Values], changed: Sequence[Values]) -> None:
        """Have the lines go on with these values in the place of those at the stop, where bits of theirs differ."""
        edits = zip(self._at.items(), here, changed, strict=True)
        puts = {number: _put(old, new, stop) for (number, stop), old, new in edits}
        self._puts = {number: put for number, put in puts.items() if put is not None}

    def abandon(self) -> None:
        """Close the sessions without waiting for them: what they run ends, and the next lines have others."""
        self._closing += [self._channel.ask(ask.Close(session=name)) for name in self._names]
        self._names, self._armed, self._at, self._puts = [], [], {}, {}

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

    def _clear(self, number: int, wanted: frozenset[str]) -> Future[replies.Cleared]:
        old = self._armed[number] - wanted
        self._armed[number] -= old
        return self._channel.ask(ask.ClearBreakpoints(session=self._names[number], sites=tuple(sorted(old))))

    def _set(self, number: int, site: str, reply: Future[replies.BreakpointSet]) -> UnknownSite | None:
        try:
            reply.result()
        except UnknownSite as error:
            return error
        self._armed[number] |= {site}
        self._known.add(site)
        return None

    def _moved(self, requests: Mapping[int, Move]) -> Standing | None:
        asked = {number: self._channel.ask(request) for number, request in requests.items()}
        came = {number: reply.result() for number, reply in asked.items()}
        self._at = {}
        for number, reply in came.items():
            if isinstance(reply, replies.Finished):
                self.ended[number] = reply
            else:
                self._at[number] = _Stop.told(reply, self._given[number])
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
        drawn = {number: stop.drawn for number, stop in self._at.items()}
        drawn |= {number: stop.tokens for number, stop in self.ended.items()}
        return Standing(site=site, step=step, lines=tuple(self._at), drawn=drawn)


def _require_whole(stop: _Stop, line: tuple[int, ...]) -> None:
    """Raise UsageError where a prompt is run in parts: what is read at a stop is the part, and not the line."""
    if stop.step == 0 and stop.site != LOGITS and len(stop.positions) != len(line):
        raise UsageError(
            f"A pass at {stop.site} has {len(stop.positions)} of {len(line)} positions; run shorter lines."
        )


def _put(old: Values, new: Values, stop: _Stop) -> Put | None:
    if new.shape != old.shape:
        raise UsageError(f"A value of shape {old.shape} at {stop.site} was replaced by one of shape {new.shape}.")
    put = put_of(old, new.astype(old.dtype, copy=False))
    if put is None or put[1] is None:
        return put
    return put[0], tuple(stop.positions[row] for row in put[1])
