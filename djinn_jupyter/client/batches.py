"""Rows of a batch: many prompts, or many samples of one, each run in a session of its own, all at once.

Row i of session "a" is session "a/i", a fork of "a" that has its breakpoints and rules and draws with seed + i. The
samples of one prompt share its pass and its pages. Rows are forked, run and paused as any session is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from djinn_jupyter.client.connection.channel import Channel, ask_for
from djinn_jupyter.client.stops import BatchInterrupted, Finished, Paused, Stop
from djinn_jupyter.errors import BatchEnded, DjinnError, UnknownSession, UsageError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read

if TYPE_CHECKING:
    from djinn_jupyter.client.running import OnToken
    from djinn_jupyter.wire.nouns import StopIdentity

MOST_ROWS: Final = 4096
OnRow = Callable[[int, Stop], None]
Order = ask.Run | ask.Resume


class Forked(Protocol):
    """The handle of a session, as a batch of it works with it and with its rows."""

    name: str

    @property
    def label(self) -> str: ...

    @property
    def stop(self) -> Paused: ...

    def row(self, number: int) -> Forked: ...

    def depart(self, request: ask.Request) -> Future[replies.Reply]: ...

    def arrived(self, reply: replies.Reply) -> Stop: ...


@dataclass(slots=True)
class Row:
    """One row: its session, its run, and its end: a stop or an error."""

    session: Forked
    order: Order
    seed: int
    runs: bool = False
    end: Stop | DjinnError | None = None

    @property
    def failed(self) -> bool:
        return isinstance(self.end, DjinnError)


@dataclass(slots=True)
class Batch:
    """The rows of one call. `on_row` is told of each that ends, `on_token` of each token, in the caller's thread."""

    parent: Forked
    channel: Channel
    on_token: OnToken | None = None
    on_row: OnRow | None = None
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False
    _feed: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def run(self, prompts: Sequence[ask.Run], samples: int) -> list[Stop]:
        """Run each prompt `samples` times."""
        self._make_rows([prompt for prompt in prompts for _ in range(samples)], prompts[0].sampling.seed)
        groups = [self.rows[first : first + samples] for first in range(0, len(self.rows), samples)]
        with self._heard():
            self._fork(self.parent, [group[0] for group in groups])
            if samples > 1:
                self._run_prompts(groups)
            self._start(self.rows)
            self._wait()
        return self._ended()

    def resume(self, order: ask.Resume, samples: int, seed: int) -> list[Stop]:
        """Go on from the parent's stop `samples` times. Raises IllegalMove where it stands at none."""
        stop = self.parent.stop.reply.stop if order.stop is None else order.stop
        self._make_rows([replace(order, stop=None)] * samples, seed)
        with self._heard():
            self._fork(self.parent, self.rows, stop=stop)
            self._start(self.rows)
            self._wait()
        return self._ended()

    # --- beginning -------------------------------------------------------------------------------------------------

    def _make_rows(self, orders: Sequence[Order], seed: int) -> None:
        """Make the rows in place of those of an earlier batch, which end."""
        if not 1 <= len(orders) <= MOST_ROWS:
            raise UsageError(f"A batch has 1 to {MOST_ROWS} rows, not {len(orders)}; run it in parts.")
        for number, order in enumerate(orders):
            row = self.parent.row(number)
            changes: dict[str, Any] = {"session": row.name}
            if isinstance(order, ask.Run):
                changes["sampling"] = replace(order.sampling, seed=seed + number)
            self.rows.append(Row(session=row, order=replace(order, **changes), seed=seed + number))
            as_read(self.rows[-1].order)  # what no engine would read is refused while the earlier rows are there
        self._close_earlier(re.escape(self.parent.label))

    def _close_earlier(self, parent: str) -> None:
        there = ask_for(self.channel, ask.ListSessions(), replies.Sessions).sessions
        for name in (one.name for one in there if re.fullmatch(parent + r"/\d+", one.name)):
            with suppress(UnknownSession):
                ask_for(self.channel, ask.Close(session=name), replies.Closed)

    def _fork(self, parent: Forked, rows: Sequence[Row], stop: StopIdentity | None = None) -> None:
        """Make the sessions of these rows, which draw with their seeds from a `stop` on; a row whose fork fails has
        ended."""
        forks = [
            ask.Fork(session=parent.name, name=row.session.name, seed=None if stop is None else row.seed, stop=stop)
            for row in rows
        ]
        asked = [self.channel.ask(fork) for fork in forks]
        for row, reply in zip(rows, asked, strict=True):
            try:
                reply.result()
            except DjinnError as error:
                row.end = error

    def _run_prompts(self, groups: Sequence[Sequence[Row]]) -> None:
        """Run the prompt of each group once, in its first row, and fork the others there. Where it stops on its way,
        each row runs it by itself."""
        heads = [group[0] for group in groups]
        self._start(heads, max_new_tokens=0)
        self._wait(quiet=True)
        if self.interrupted:
            return
        for group in groups:
            head, others = group[0], group[1:]
            if isinstance(head.end, DjinnError):
                for row in others:
                    row.end = head.end
                continue
            shared, head.end = isinstance(head.end, Finished), None
            self._fork(head.session if shared else self.parent, others)
            for row in group if shared else ():
                row.order = replace(row.order, text=None, tokens=None, chat=False, extend=True)

    # --- running ---------------------------------------------------------------------------------------------------

    def _start(self, rows: Sequence[Row], **changes: Any) -> None:
        """Start all of these rows that have not ended."""
        for row in rows:
            if row.end is None and not self.interrupted:
                row.runs = True
                reply = row.session.depart(replace(row.order, **changes))
                reply.add_done_callback(lambda done, row=row: self._feed.put((row, done)))  # type: ignore[misc]

    def _heard(self) -> ExitStack:
        """Have the tokens of all rows told."""
        heard = ExitStack()
        if self.on_token is not None:
            for row in self.rows:
                heard.callback(self.channel.listen(row.session.name, self._feed.put))
        return heard

    def _wait(self, quiet: bool = False) -> None:
        """Wait until no row runs. An interrupt pauses those that run; a second one is raised at once."""
        while any(row.runs for row in self.rows):
            try:
                self._take(quiet)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self._pause()

    def _take(self, quiet: bool) -> None:
        match self.channel.take(self._feed, None):
            case Row() as row, Future() as done:
                row.runs = False
                row.end = _end_of(row, done)
                if self.on_row is not None and not quiet and not isinstance(row.end, DjinnError):
                    self.on_row(self.rows.index(row), row.end)
            case replies.TokenSampled() as event if self.on_token is not None:
                self.on_token(event)

    def _pause(self) -> None:
        self.interrupted = True
        for row in self.rows:
            if row.runs:
                self.channel.ask(ask.Pause(session=row.session.name))

    # --- the end ---------------------------------------------------------------------------------------------------

    def _ended(self) -> list[Stop]:
        """Return the stops of all rows. Raises BatchInterrupted, BatchEnded where some rows failed, and the error
        itself where all did."""
        ends = [row.end for row in self.rows]
        if self.interrupted:
            raise BatchInterrupted(ends)
        errors = [end for end in ends if isinstance(end, DjinnError)]
        if len(errors) == len(ends):
            raise errors[0]
        if errors:
            raise BatchEnded(self._said(errors), ends)
        return [end for end in ends if end is not None and not isinstance(end, DjinnError)]

    def _said(self, errors: Sequence[DjinnError]) -> str:
        first = next(row for row in self.rows if row.failed)
        return (
            f"{len(errors)} of {len(self.rows)} rows failed, {first.session.label} first: {errors[0]} The other rows "
            "are in `rows` of this error, and in their sessions."
        )


def _end_of(row: Row, done: Future[replies.Reply]) -> Stop | DjinnError:
    try:
        return row.session.arrived(done.result())
    except DjinnError as error:
        return error


def are_prompts(given: object) -> bool:
    """Return whether this is a list of prompts and not one prompt."""
    if not isinstance(given, list | tuple):
        return False
    return any(isinstance(one, str) or hasattr(one, "__len__") for one in given)
