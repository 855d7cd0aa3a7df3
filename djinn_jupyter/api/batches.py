"""Wait for a run: stream its tokens, and pause it on a KeyboardInterrupt."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from queue import SimpleQueue
from typing import Any, Final, Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from djinn_jupyter.api.stops import BatchInterrupted, Finished, Paused, Stop
from djinn_jupyter.api.tables import Tabular
from djinn_jupyter.errors import BatchEnded, DjinnError, UnknownSession, UsageError
from djinn_jupyter.link.channel import Channel, all_sessions, followed
from djinn_jupyter.link.waiting import far, waited, waiting
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.codec import as_read
from djinn_jupyter.wire.nouns import SamplingChanges, SessionDescription, StopIdentity
from djinn_jupyter.wire.replies import Finished as FinishedReply
from djinn_jupyter.wire.replies import Paused as PausedReply
from djinn_jupyter.wire.replies import TokenSampled
from djinn_jupyter.wire.request_base import Answer
from djinn_jupyter.wire.requests import Pause, RequestBase
from djinn_jupyter.wire.texts import distinct_labels, label, spelled_with

OnToken = Callable[[TokenSampled], None]
RunReply = PausedReply | FinishedReply
RunRequest = RequestBase[RunReply]


def run_until_stop(
    channel: Channel, session: str, request: RequestBase[Answer], on_token: OnToken | None
) -> tuple[Answer, bool]:
    """Return the reply of a run, and True if it was interrupted; `on_token` is called in the caller's thread.

    On a KeyboardInterrupt, ask the engine to pause and wait for the reply: the session is then intact, and the caller
    has its stop. A second interrupt is raised at once. So is the first while a long prompt is still being sent (it is
    withdrawn) or while the connection is down (the engine receives the pause when it is back).
    """
    if on_token is None:
        with waited("The run", "pauses it"):
            return _wait(channel, session, channel.ask(request))
    with followed(channel, session, request) as run:
        try:
            for event in run.events():
                if isinstance(event, TokenSampled):
                    on_token(event)
        except KeyboardInterrupt:
            return _pause(channel, session, run.reply), True
        return run.reply.result(), False


def _wait(channel: Channel, session: str, reply: Future[Answer]) -> tuple[Answer, bool]:
    try:
        return reply.result(), False
    except KeyboardInterrupt:
        return _pause(channel, session, reply), True


def _pause(channel: Channel, session: str, reply: Future[Answer]) -> Answer:
    if channel.take_back(reply):
        raise KeyboardInterrupt
    channel.ask(Pause(session=session))
    if channel.down_since is not None:
        raise KeyboardInterrupt
    return reply.result()


# Rows of a batch: many prompts, or many samples of one, each in a session of its own, all at once. Row i of session "a"
# is session "a/i", a fork of "a" with its breakpoints and rules and with seed + i. Its name includes the notebook's
# folders where another notebook has the same stem. The samples of one prompt share its pass and its pages. Rows are
# forked, run and paused like any session.

MOST_ROWS: Final = 4096
_ROW: Final = re.compile(r".+/\d+", re.DOTALL)
OnRow = Callable[[int, Stop], None]
RunOrder = ask.Run | ask.Resume


class Forked(Protocol):
    """The handle of a session, as a batch uses it."""

    name: str

    @property
    def label(self) -> str: ...

    @property
    def stop(self) -> Paused: ...

    def row(self, name: str) -> Forked: ...

    def send(self, request: RunRequest) -> Future[RunReply]: ...

    def arrived(self, reply: RunReply) -> Stop: ...


@dataclass(slots=True)
class Row:
    """One row: its number, session, run, and end (a stop or an error). `coef` is the coefficient of its rule."""

    number: int
    session: Forked
    order: RunOrder
    seed: int
    coef: float | None = None
    runs: bool = False
    end: Stop | DjinnError | None = None

    @property
    def failed(self) -> bool:
        return isinstance(self.end, DjinnError)


@dataclass(slots=True)
class Batch:
    """The rows of one call. `on_row` is called for each row that ends, `on_token` for each token, in the caller's
    thread. Rows of another notebook are replaced only with `force`. `all_logits` fetches the logits of all positions
    for finished rows. `rule` is the number of the rule with the rows' coefficients, None for the only one."""

    parent: Forked
    channel: Channel
    on_token: OnToken | None = None
    on_row: OnRow | None = None
    force: bool = False
    all_logits: bool = False
    rule: int | None = None
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False
    _feed: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def run(self, prompts: Sequence[ask.Run], samples: int, coefs: Sequence[float | None] = (None,)) -> list[Stop]:
        """Run each prompt with each coefficient `samples` times."""
        _require_some(len(prompts) * len(coefs) * samples)
        rows = [(prompt, coef) for prompt in prompts for coef in coefs for _ in range(samples)]
        self._make_rows(rows, prompts[0].sampling.seed)
        groups = [self.rows[first : first + samples] for first in range(0, len(self.rows), samples)]
        with self._heard(), self._shown():
            self._fork(self.parent, [group[0] for group in groups])
            if samples > 1:
                self._run_prompts(groups)
            self._start(self.rows)
            self._wait()
        return self._ended()

    def resume(self, order: ask.Resume, samples: int) -> list[Stop]:
        """Continue from the parent's stop `samples` times. Raises IllegalMove where it has no stop."""
        _require_some(samples)
        stop = self.parent.stop.reply.stop if order.stop is None else order.stop
        seed = 0 if order.sampling is UNSET else order.sampling.seed or 0
        self._make_rows([(replace(order, stop=None, sampling=UNSET), None)] * samples, seed)
        with self._heard(), self._shown():
            self._fork(self.parent, self.rows, stop, order.sampling)
            self._start(self.rows)
            self._wait()
        return self._ended()

    # --- beginning -------------------------------------------------------------------------------------------------

    def _make_rows(self, orders: Sequence[tuple[RunOrder, float | None]], seed: int) -> None:
        """Replace the rows of an earlier batch, which end."""
        there = all_sessions(self.channel)
        stem = distinct_labels([self.parent.name, *(one.name for one in there)])[self.parent.name]
        for number, (order, coef) in enumerate(orders):
            row = self.parent.row(f"{stem}/{number}")
            changes: dict[str, Any] = {"session": row.name}
            if isinstance(order, ask.Run):
                changes["sampling"] = replace(order.sampling, seed=seed + number)
            made = Row(number=number, session=row, order=replace(order, **changes), seed=seed + number, coef=coef)
            self.rows.append(made)
            as_read(made.order)  # a prompt that no engine reads is refused before the earlier rows end
        _require_tokens(orders[0][0], there)
        self._close(rows_by_batch(there).get(self.parent.name, ()))

    def _close(self, earlier: Sequence[SessionDescription]) -> None:
        """Close an earlier batch's rows. Another notebook's come first, so that a refusal leaves all rows."""
        ours = [one for one in earlier if one.holder == self.channel.holder]
        for one in earlier:
            if one not in ours:
                self._closed(self.channel.ask(self._close_of(one)))
        for reply in [self.channel.ask(self._close_of(one)) for one in ours]:
            self._closed(reply)

    def _close_of(self, row: SessionDescription) -> ask.Close:
        return ask.Close(session=row.name, force=self.force)

    def _closed(self, reply: Future[replies.Closed]) -> None:
        with suppress(UnknownSession):
            reply.result()

    def _fork(
        self,
        parent: Forked,
        rows: Sequence[Row],
        stop: StopIdentity | None = None,
        changes: SamplingChanges | UnsetType = UNSET,
    ) -> None:
        """Create the sessions of these rows, which sample from a `stop` on; a failed fork ends its row."""
        asked = [self.channel.ask(self._fork_of(parent, row, stop, changes)) for row in rows]
        for row, reply in zip(rows, asked, strict=True):
            try:
                reply.result()
            except DjinnError as error:
                row.end = error

    def _fork_of(
        self, parent: Forked, row: Row, stop: StopIdentity | None, changes: SamplingChanges | UnsetType
    ) -> ask.Fork:
        """Return the request for a row's session; forks of a row have its coefficient."""
        seed = None if stop is None else row.seed
        fork = ask.Fork(session=parent.name, name=row.session.name, seed=seed, sampling=changes, stop=stop)
        if row.coef is None or parent is not self.parent:
            return fork
        return replace(fork, coef=row.coef, rule=self.rule)

    def _run_prompts(self, groups: Sequence[Sequence[Row]]) -> None:
        """Run the prompt of each group once, in its first row, and fork the others from it. If that run stops early,
        each row runs the prompt itself."""
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
        """Start those of these rows that have not ended."""
        for row in rows:
            if row.end is None and not self.interrupted:
                row.runs = True
                reply = row.session.send(replace(row.order, **changes))
                reply.add_done_callback(partial(_put_end, self._feed, row.number))

    def _heard(self) -> ExitStack:
        """Listen to the tokens of all rows."""
        heard = ExitStack()
        if self.on_token is not None:
            for row in self.rows:
                heard.callback(self.channel.listen(row.session.name, self._feed.put))
        return heard

    def _shown(self) -> AbstractContextManager[object]:
        return waiting("The batch", "pauses it", quiet=self.on_row is not None or self.on_token is not None)

    def _wait(self, quiet: bool = False) -> None:
        """Wait until no row runs. An interrupt pauses the running rows; a second one is raised at once."""
        while any(row.runs for row in self.rows):
            far(f"{sum(not row.runs for row in self.rows):,} of {len(self.rows):,} rows")
            try:
                self._take(quiet)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self._pause()

    def _take(self, quiet: bool) -> None:
        match self.channel.take(self._feed, None):
            case int() as number, Future() as done:
                row = self.rows[number]
                row.runs = False
                row.end = _end_of(row, done)
                if self.on_row is not None and not quiet and not isinstance(row.end, DjinnError):
                    self.on_row(number, row.end)
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
        if self.all_logits:
            _read_all_logits(ends)
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


def _require_tokens(order: RunOrder, there: Sequence[SessionDescription]) -> None:
    """Raise UsageError for a run without a prompt, unless it extends existing tokens."""
    if not isinstance(order, ask.Run) or order.text is not None or order.tokens is not None:
        return
    if not order.extend:
        raise UsageError("The prompt has no tokens.")
    if not any(one.name == order.session and one.tokens for one in there):
        raise UsageError("There is nothing to extend; run a prompt first.")


def rows_by_batch(sessions: Iterable[SessionDescription]) -> dict[str, list[SessionDescription]]:
    """Return the rows of batches by the name of their session, or by their stem where that is closed. If its stem was
    different then (no other notebook had it), they are its rows only if they belong to its notebook."""
    there = {one.name: one for one in sessions}
    shown = distinct_labels(there)
    full = {stem: name for name, stem in shown.items()}
    stems: defaultdict[tuple[str, str | None], list[str]] = defaultdict(list)
    for name, one in there.items():
        if one.notebook is not None:
            for stem in {label(name), *(spelled_with(name, n) for n in range(1, len(PurePosixPath(name).parts)))}:
                stems[stem, one.notebook].append(name)
    found: dict[str, list[SessionDescription]] = {}
    for row in filter(lambda one: _ROW.fullmatch(one.name), there.values()):
        stem = row.name.rpartition("/")[0]
        batch = full.get(stem) or next(iter(stems[stem, row.notebook]), stem)
        found.setdefault(batch, []).append(row)
    return found


def rows_below(name: str, rows: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the rows of a session, each before its own, given the rows of each."""
    for row in rows.get(name, ()):
        yield row
        yield from rows_below(row, rows)


def _read_all_logits(ends: Sequence[Stop | DjinnError | None]) -> None:
    """Fetch the logits of all positions of finished rows, while the rules are still those of the run. Raises
    BatchInterrupted after an interrupt. Logits over the limit raise when they are read."""
    try:
        for end in ends:
            if isinstance(end, Finished):
                with suppress(DjinnError):
                    end.fetch_all_logits()
    except KeyboardInterrupt:
        raise BatchInterrupted(ends) from None


def _require_some(rows: int) -> None:
    if not 1 <= rows <= MOST_ROWS:
        parts = "; run it in parts" if rows > MOST_ROWS else ""
        raise UsageError(f"A batch has 1 to {MOST_ROWS} rows, not {rows}{parts}.")


def _put_end(feed: SimpleQueue[Any], number: int, done: Future[RunReply]) -> None:
    """Record a row's end. A reply may outlive the batch, so it does not reference the row: the logits of a referenced
    run are fetched when its session ends."""
    feed.put((number, done))


def _end_of(row: Row, done: Future[RunReply]) -> Stop | DjinnError:
    try:
        return row.session.arrived(done.result())
    except DjinnError as error:
        return error


def are_prompts(given: object) -> bool:
    """Return whether this is a list or an array of prompts and not one prompt."""
    if not isinstance(given, list | tuple):
        return getattr(given, "ndim", 0) > 0 and getattr(getattr(given, "dtype", None), "kind", None) in ("U", "O")
    return any(isinstance(one, str) or hasattr(one, "__len__") for one in given)


def doses_of(rows: Sequence[object], coefs: Sequence[float], samples: int) -> list[float]:
    """Return the coefficient of each row: all coefficients of one prompt in turn, each with its samples in a row."""
    return [coefs[number // samples % len(coefs)] for number in range(len(rows))]


class DoseRows(Tabular, list[Any]):
    """The rows of a dose-response in order, and as a table. `doses` has the coefficient of each. `responses` has the
    mean of each of `metrics` by coefficient, read after the prompt."""

    def __init__(
        self,
        rows: Sequence[object],
        doses: Sequence[float],
        metrics: Sequence[str] = (),
        responses: Mapping[float, Sequence[float]] | None = None,
    ) -> None:
        super().__init__(rows)
        self.doses, self.metrics, self.responses = tuple(doses), tuple(metrics), dict(responses or {})

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each row of the batch: its coefficient, its text (or None), and each metric there."""
        found = [self.responses.get(dose) for dose in self.doses]
        table: dict[str, list[Any]] = {
            "coefficient": list(self.doses),
            "text": [getattr(row, "text", None) for row in self],
        }
        for number, metric in enumerate(self.metrics):
            table[metric] = [one and one[number] for one in found]
        return table


def responses(rows: Sequence[object], doses: Sequence[float], metrics: Sequence[str]) -> dict[float, tuple[float, ...]]:
    """Return the mean of each metric over the finished rows of each dose, by rising dose."""
    found: dict[float, list[tuple[float, ...]]] = {}
    for row, dose in zip(rows, doses, strict=True):
        if isinstance(row, Finished):
            found.setdefault(dose, []).append(row.session.metrics(*metrics))
    return {dose: tuple(sum(one) / len(one) for one in zip(*found[dose], strict=True)) for dose in sorted(found)}
