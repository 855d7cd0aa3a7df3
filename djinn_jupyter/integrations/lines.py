"""Token sequences of one length that run side by side, each in its own session, in one pass that stops wherever a
Python function of the caller's reads or changes a value. Knows sites and numpy arrays, and no other tool."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np
import torch
from torch import Tensor

from djinn_jupyter.api.arrays import from_numpy, shared_numpy
from djinn_jupyter.errors import DjinnError, EngineError, UnknownSite, UsageError
from djinn_jupyter.link.channel import Channel, ask_for, expect
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.arrays import Array
from djinn_jupyter.wire.nouns import Sampling, Snapshot
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.sites import Site, parse_site

Values = np.ndarray[Any, Any]
Asked = Callable[[str, tuple[int, ...]], ask.RequestBase[Answer]]  # the request for a line, from its session and tokens
Change = Callable[[Values], Values]
"""Is given the values at a site of all lines, [lines, positions, ...], and returns those to go on with."""
Put = tuple[Array, tuple[int, ...] | None]  # replacement values of a line, and their positions, None for all
Puts = Sequence[Put | None]
FIRST: Final = "resid_pre.0"  # a pass without changes stops here, and is read from here on
LOGITS: Final = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The `values` at the requested sites, [lines, positions, ...], after all changes, and the `logits`, fp32 [lines,
    positions, vocabulary], of one pass over all lines; None where not requested."""

    values: Mapping[str, Values]
    logits: Values | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The lines (token sequences) of a pass and its halts. It ends at the last halt, `until` if given."""

    lines: tuple[tuple[int, ...], ...]
    halts: tuple[str, ...]
    until: str | None

    @classmethod
    def of(cls, lines: Sequence[Sequence[int]], changes: Iterable[str], until: str | None) -> Order:
        given = tuple(tuple(line) for line in lines)
        if not given or len({len(line) for line in given}) != 1 or not given[0]:
            raise UsageError("Lines run side by side where all have the same number of tokens, one at least.")
        halts = tuple(dict.fromkeys((*changes, *([until] if until else ()))))
        return cls(lines=given, halts=halts or (FIRST,), until=until)


class HookedLines:
    """The sessions in which lines run. `opened` opens the session of line n and returns its name."""

    def __init__(self, channel: Channel, opened: Callable[[int], str]) -> None:
        self._channel, self._opened = channel, opened
        self._names: list[str] = []
        self._armed: tuple[int, tuple[str, ...]] = (0, ())
        self._first: tuple[Order, str, Values] | None = None  # the stop of all lines, and its values

    def run(
        self,
        lines: Sequence[Sequence[int]],
        *,
        changes: Mapping[str, Sequence[Change]],
        read: Iterable[str] = (),
        logits: bool = True,
        until: str | None = None,
    ) -> Passed:
        """Run these lines in one pass that stops at the sites of `changes`, calls these in order, and continues with
        their results. Return the values at `read` that the pass reached. It ends at the site `until`, without logits.
        UsageError for lines of different lengths; UnknownSite."""
        wanted = {site: place_of(site) for site in read}
        calls: dict[str, list[Change]] = {}
        for site, there in changes.items():
            calls.setdefault(place_of(site), []).extend(there)
        of_logits = calls.pop(LOGITS, [])
        order = Order.of(lines, calls, None if until is None else place_of(until))
        whole = until is None and (logits or bool(of_logits) or LOGITS in wanted.values())
        try:
            values, puts = self._pass(order, calls)
            values |= self._read(order, puts, set(wanted.values()) - {*values, LOGITS}, whole)
        except BaseException:
            self._first = None  # the place of the lines is unknown: the next pass starts again
            raise
        for call in of_logits:
            values[LOGITS] = call(values[LOGITS])
        met = {site: values[place] for site, place in wanted.items() if place in values}
        return Passed(values=met, logits=values.get(LOGITS))

    def close(self) -> None:
        """Close the sessions."""
        for name in self._names:
            with suppress(DjinnError):  # another client closed it, or the engine is gone
                ask_for(self._channel, ask.Close(session=name))
        self._names, self._first, self._armed = [], None, (0, ())

    # --- the pass ---------------------------------------------------------------------------------------------------

    def _pass(self, order: Order, calls: Mapping[str, Sequence[Change]]) -> tuple[dict[str, Values], Puts]:
        """Run all lines to their last stop. Return the changed values at all stops, and each line's replacement for the
        last one, which the pass has yet to use."""
        values: dict[str, Values] = {}
        place, here = self._begin(order)
        while True:
            values[place] = changed = _changed(here, calls.get(place, ()))
            puts = [put_of(*pair) for pair in zip(here, changed, strict=True)]
            if place == order.until or len(values) == len(order.halts):
                return values, puts
            self._first = None
            place, here = self._reached(order, self._resumed(order, puts))

    def _begin(self, order: Order) -> tuple[str, Values]:
        """Run all lines to the first stop of their pass. Lines still there from the last one skip the layers below."""
        if self._first is None or self._first[0] != order:
            self._first = None
            self._arm(order)
            for reply in self._each(order, lambda name, line: ask.Run(session=name, tokens=line, max_new_tokens=0)):
                expect(reply, replies.Paused)
            here = self._each(order, lambda name, line: ask.Inspect(session=name))
            self._first = (order, *self._reached(order, here))
        return self._first[1], self._first[2]

    def _arm(self, order: Order) -> None:
        """Make the sessions halt at the sites of this order."""
        while len(self._names) < len(order.lines):
            self._names.append(self._opened(len(self._names)))
        if self._armed == (len(order.lines), order.halts):
            return
        self._each(order, lambda name, line: ask.ClearBreakpoints(session=name))
        for place in order.halts:
            self._each(order, partial(_breakpoint, place))
        self._armed = (len(order.lines), order.halts)

    def _resumed(self, order: Order, puts: Puts) -> list[replies.Reached]:
        """Resume all lines with their replacement values. Return the values at the next stop."""
        asked = [ask.ResumeWith(session=name, **given(put)) for name, put in zip(self._of(order), puts, strict=True)]
        return [expect(reply, replies.Reached) for reply in self._answers(asked)]

    def _reached(self, order: Order, here: Sequence[replies.Inspected | replies.Reached]) -> tuple[str, Values]:
        """Return the place of a stop and the values of all lines there."""
        for one in here:
            _require_all(one.snapshot, order)
        values = _stacked([one.snapshot.value for one in here])
        values.setflags(write=False)  # the next pass may begin with them
        return place_of(here[0].snapshot.site), values

    def _read(self, order: Order, puts: Puts, places: set[str], whole: bool) -> dict[str, Values]:
        """Read the pass in which all lines are stopped: its values so far and, unless it ends here, those of its
        continuation with the replacement."""
        if not places and not whole:
            return {}
        sites, ahead = tuple(sorted(places)), order.until is None
        read = self._answers(
            [
                ask.ReadPass(session=name, sites=sites, ahead=ahead, logits=whole, **given(put))
                for name, put in zip(self._of(order), puts, strict=True)
            ]
        )
        found = {site: _stacked([one.values[n] for one in read]) for n, site in enumerate(read[0].sites)}
        return found | ({LOGITS: _stacked([one.logits for one in read])} if whole else {})

    def _of(self, order: Order) -> list[str]:
        return self._names[: len(order.lines)]

    def _each(self, order: Order, request: Asked[Answer]) -> list[Answer]:
        """Send a request for every line at once, and return the replies."""
        pairs = zip(self._of(order), order.lines, strict=True)
        return self._answers([request(name, line) for name, line in pairs])

    def _answers(self, requests: Iterable[ask.RequestBase[Answer]]) -> list[Answer]:
        asked = [self._channel.ask(request) for request in requests]
        return [reply.result() for reply in asked]


def _breakpoint(place: str, name: str, line: tuple[int, ...]) -> ask.SetBreakpoint:
    return ask.SetBreakpoint(session=name, site=place)


@cache
def place_of(site: str) -> str:
    """Spell a site so that two names of one tensor between layers are the same."""
    parsed = parse_site(site)
    if parsed.point == "resid_pre" and parsed.layer:
        parsed = Site(point="resid_post", layer=parsed.layer - 1)
    return str(parsed.whole())


def _require_all(here: Snapshot, order: Order) -> None:
    if len(here.positions) != len(order.lines[0]):
        raise UsageError(
            f"A pass at {here.site} has {len(here.positions)} of {len(order.lines[0])} positions; run shorter lines."
        )


def _changed(here: Values, calls: Sequence[Change]) -> Values:
    """Call the functions of a stop. Return the changed values."""
    changed = here
    for call in calls:
        changed = call(changed.copy())
    if changed.shape != here.shape:
        raise UsageError(f"A value of shape {here.shape} was replaced by one of shape {changed.shape}.")
    return changed.astype(here.dtype, copy=False)


def put_of(here: Values, changed: Values) -> Put | None:
    """Return the values of the positions whose bits differ; None where none do."""
    bits = [np.ascontiguousarray(value).view(np.uint8).reshape(len(value), -1) for value in (here, changed)]
    rows = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    if not rows.size:
        return None
    value = from_numpy(np.ascontiguousarray(changed[rows]))
    return value, None if rows.size == len(here) else tuple(rows.tolist())


def given(put: Put | None) -> dict[str, Any]:
    """Return the fields of a request with the replacement for a stopped value."""
    return {} if put is None else {"value": put[0], "positions": put[1]}


def _stacked(arrays: Sequence[Any]) -> Values:
    """Return the values of all lines in memory of their own."""
    return np.stack([shared_numpy(array) for array in arrays])


def to_tensor(values: Values) -> Tensor:
    """Return a tensor of these values on the host, in their memory if writable, else copied."""
    if not (values.flags.writeable and values.flags.c_contiguous):
        values = np.array(values, copy=True, order="C")
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def to_values(tensor: Tensor) -> Values:
    """Return the values of a tensor, copied to the host where it is elsewhere."""
    host = tensor.detach().to("cpu").contiguous()
    if host.dtype is torch.bfloat16:
        bits: Values = host.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    values: Values = host.numpy()
    return values


# Token sequences that run side by side, each in its own session, and stop where the caller says while they run: it
# reads a stop, edits it, and names the sites of the next one. The request to continue carries the edit and the sites,
# and its reply has the values of the next stop. Knows sites and numpy arrays, and no other tool.

GREEDY: Final = Sampling()
Move = ask.RequestBase[replies.Paused | replies.Reached | replies.Finished]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The place of stopped lines: a site, in the pass that makes the token after `step` new ones; their numbers, and
    the tokens that each has sampled so far."""

    site: str
    step: int
    lines: tuple[int, ...]
    drawn: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """A line's stop, as in a reply: the positions of the pass, and the value if included."""

    site: str
    step: int
    positions: tuple[int, ...]
    drawn: tuple[int, ...]
    value: Values | None = None

    @classmethod
    def of(cls, reply: replies.Paused | replies.Reached, line: tuple[int, ...]) -> _Stop:
        if isinstance(reply, replies.Paused):
            drawn = reply.tokens[len(line) :]
            return cls(site=reply.site, step=reply.step, positions=reply.positions, drawn=drawn)
        value = shared_numpy(reply.snapshot.value)
        return cls(site=reply.snapshot.site, step=reply.step, positions=reply.positions, drawn=reply.drawn, value=value)


class SteppedLines:
    """The sessions in which lines run. `opened` opens the session of line n and returns its name."""

    def __init__(self, channel: Channel, opened: Callable[[int], str]) -> None:
        self._channel, self._opened = channel, opened
        self._names: list[str] = []
        self._armed: list[frozenset[str]] = []
        self._known: set[str] = set()  # sites at which passes of this model stop
        self._next: frozenset[str] | None = None  # the sites to stop at from here on, where they have changed
        self._closing: list[Future[replies.Closed]] = []
        self._given: tuple[tuple[int, ...], ...] = ()
        self._at: dict[int, _Stop] = {}
        self._puts: dict[int, Put] = {}  # the replacement values with which the stopped lines continue
        self.ended: dict[int, replies.Finished] = {}

    def arm(self, count: int, halts: Collection[str]) -> dict[str, UnknownSite]:
        """Make the sessions of so many lines stop only at these sites. Return the sites at which no pass of this model
        can stop, with the reasons."""
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
        """Run these lines to their first stop, or to the end: None. Line n samples with `sampling.seed` + n."""
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
        """Continue the stopped lines to their next stop, or to the end: None."""
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
        """Return the values at the stop, [positions, ...], of each stopped line, read-only."""
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
        """Return the logits of all positions, fp32, that each pass would end with, edits included. UsageError after
        their end."""
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
        """Continue the lines with these values in place of those at the stop, where bits differ."""
        edits = zip(self._at.items(), here, changed, strict=True)
        puts = {number: _put(old, new, stop) for (number, stop), old, new in edits}
        self._puts = {number: put for number, put in puts.items() if put is not None}

    def abandon(self) -> None:
        """Close the sessions without waiting: their work ends, and the next lines have new ones."""
        self._closing += [self._channel.ask(ask.Close(session=name)) for name in self._names]
        self._names, self._armed, self._at, self._puts = [], [], {}, {}

    def close(self) -> None:
        """Close the sessions, including abandoned ones."""
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
                self._at[number] = _Stop.of(reply, self._given[number])
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
    """Raise UsageError where a prompt is run in parts, because a stop then has only a part of the values."""
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
