"""Look at stopped passes and at recorded values; two of them compared. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import torch
from torch import Tensor

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.loop.parts import BuiltOfParts, EngineParts
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.breakpoints import FedLine, Watch
from djinn_jupyter.engine.passes.conditions import Metrics
from djinn_jupyter.engine.passes.frame import Frame
from djinn_jupyter.engine.passes.site_value import SiteValue, evaluate
from djinn_jupyter.engine.requests import interventions
from djinn_jupyter.engine.requests.bounds import (
    TOKEN_BYTES,
    Room,
    require_answerable,
    require_few_passes,
    require_few_tokens,
)
from djinn_jupyter.engine.requests.figures import PartOfPass, chunks, figures_for, pooled_for
from djinn_jupyter.engine.requests.handlers import handles
from djinn_jupyter.engine.requests.interventions import checked_condition, require_known_tokens
from djinn_jupyter.engine.requests.recipes import circumstances, look_recipe, wire_passes
from djinn_jupyter.engine.requests.sessions import brought
from djinn_jupyter.engine.residency.workspace import Workspace
from djinn_jupyter.engine.session import history, queries, reports
from djinn_jupyter.engine.session.history import fed_line
from djinn_jupyter.engine.session.reports import LeadingSpaces, influences
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store.identity import ModelIdentity
from djinn_jupyter.engine.system.arrays import dtype_name, handed_over, to_array
from djinn_jupyter.errors import IllegalMove, InvalidCondition, UnknownSite, UsageError
from djinn_jupyter.wire import replies
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Set
from djinn_jupyter.wire.looks import Direction, LookRecipe, WatchedLine, WatchRecipe
from djinn_jupyter.wire.nouns import LensRow, ModelDescription, Snapshot
from djinn_jupyter.wire.readings import Apart, Compared, LargestDifference
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes, label, sendable

EMPTY: Final = "it recorded no pass"
BACK: Final = "the session went back, and other passes followed than some of those recorded"
GONE: Final = "it went on in another process than the one that recorded it"
UNDER_WAY: Final = "a recorded pass is still under way, or is no part of the line any more"


def watch_recipe(
    identity: ModelIdentity, model: ModelDescription, session: Session, watch: Watch
) -> tuple[WatchRecipe | None, str]:
    """Return the recipe of the recorded passes; None, with the reason, where there is none."""
    lines = _lines(session, watch)
    unmade = next(_why_not(watch, lines), "")
    if unmade:
        return None, unmade
    taps = [
        watch.tap,
        *(tap for line in lines.values() for one in line.passes for rule in one.rules for tap in rule.taps),
    ]
    recipe = WatchRecipe(
        lines=tuple(WatchedLine(run=run, tokens=line.tokens, passes=wire_passes(line)) for run, line in lines.items()),
        direction=_direction(watch),
        made=circumstances(identity, model, session, (), taps),
    )
    return recipe, ""


def _lines(session: Session, watch: Watch) -> dict[int, FedLine]:
    """Return the token sequences of the runs with recorded passes, as far as this process has them."""
    present = fed_line(
        session.tokens, session.pass_log, session.exactness, session.history.arrived, session.rules_in_force
    )
    known = watch.lines | {session.runs: present}
    return {run: known[run] for run in dict.fromkeys(watch.runs) if run in known}


def _why_not(watch: Watch, lines: dict[int, FedLine]) -> Iterator[str]:
    """Yield the reasons why the recorded passes cannot be reproduced."""
    if not watch.values:
        yield EMPTY
    for run, positions in zip(watch.runs, watch.positions, strict=True):
        line = lines.get(run)
        if line is None:
            yield f"of run {run}, {GONE}"
        elif run in watch.repeated:
            yield f"in run {run}, {BACK}"
        elif line.unmade:
            yield f"in run {run}, {line.unmade}"
        elif not line.has_pass(positions):
            yield f"of run {run}, {UNDER_WAY}"


def _direction(watch: Watch) -> Direction | None:
    if watch.direction is None or watch.unit is None:
        return None
    return Direction(name=watch.direction, vector=to_array(watch.unit))


LENS_ROWS = 64
LENS_TOKENS = 8192  # that are spelled before others are answered


class InspectionRequests(BuiltOfParts):
    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._workspace = Workspace(parts.budget, parts.runtime.space, "lenses")
        self._tokenizer = parts.runtime.tokenizer

    @handles(ask.MeasureEffect)
    def measure_effect(self, request: ask.MeasureEffect, session: Session, holder: Holder) -> Steps[replies.Effect]:
        frame = queries.stopped_frame(session)
        stop = session.history.here
        assert stop is not None
        asked = [token_id(self._runtime, token) for token in request.tokens]
        before = yield from queries.next_logits(self._runtime.of(session), session, stop.frame)
        after = before
        if frame is not stop.frame:
            after = yield from queries.next_logits(self._runtime.of(session), session, frame)
        assert frame.tap is not None
        here = msgspec.structs.replace(request, tokens=tuple(asked))
        made, unmade = self._recipe(session, here, frame.tap)
        return replies.Effect(
            stop=reports.stop_identity(session),
            effect=reports.effect(self._runtime, before, after, request.top, asked),
            site=str(stop.site),
            edits=session.edits_in_force,
            influences=influences(session, frame),
            made=made,
            unmade=unmade,
        )

    @handles(ask.Inspect)
    def inspect(self, request: ask.Inspect, session: Session, holder: Holder) -> Steps[replies.Inspected]:
        part = yield from self._part(request, session)
        _, site, tap = self._looked_at(request, session)
        made, unmade = self._recipe(session, msgspec.structs.replace(request, site=str(site)), tap)
        return replies.Inspected(
            made=made,
            unmade=unmade,
            snapshot=Snapshot(
                stop=part.stop,
                site=str(part.site),
                value=to_array(part.value),
                axes=part.axes,
                positions=part.positions,
                dtype=dtype_name(part.value.dtype),
                exactness=part.exactness,
            ),
        )

    @handles(ask.ReadPooled)
    def read_pooled(self, request: ask.ReadPooled, session: Session, holder: Holder) -> Steps[replies.PooledRead]:
        part = yield from self._part(request, session)
        return replies.PooledRead(pooled=pooled_for(request, part))

    @handles(ask.ReadFigures)
    def read_figures(self, request: ask.ReadFigures, session: Session, holder: Holder) -> Steps[replies.FiguresRead]:
        part = yield from self._part(request, session)
        return figures_for(part, each=request.each)

    def _part(
        self, request: ask.Inspect | ask.ReadPooled | ask.ReadFigures, session: Session
    ) -> Generator[Blocked | None, None, PartOfPass]:
        """Return the requested values, of the stopped pass or ahead of it."""
        frame, site, tap = self._looked_at(request, session)
        ahead = not isinstance(request, ask.ReadFigures) and request.ahead
        seen = yield from queries.value_at(self._runtime.of(session), session, tap, ahead)
        value = tap.read(seen.raw)
        available = frame.positions[len(frame.positions) - value.shape[0] :]
        rows = edits.rows_of(request.positions, available)
        return PartOfPass(
            stop=reports.stop_identity(session),
            site=site,
            axes=tap.axes,
            value=edits.take(value, rows, site.selector),
            positions=tuple(available if rows is None else (available[row] for row in rows)),
            exactness=session.exactness if seen.exactness == "exact" else seen.exactness,
        )

    @handles(ask.Lens)
    def lens(self, request: ask.Lens, session: Session, holder: Holder) -> Steps[replies.LensRead]:
        frame, site, tap = self._looked_at(request, session)
        if site.point == "logits":
            raise UnknownSite("The logits are the end of the network already; ask for their top with the run's result.")
        if tap.lens_width != self._forward.anatomy.hidden_size:
            raise UnknownSite(
                f"The logit lens reads values of the residual stream's width {self._forward.anatomy.hidden_size}; "
                f"{tap.site.whole()} is {tap.axes} with {tap.width}."
            )
        asked = [token_id(self._runtime, token) for token in request.tokens]
        leading_spaces = LeadingSpaces(self._tokenizer, request.tokens)
        seen = yield from queries.value_at(self._runtime.of(session), session, tap, ahead=False)
        rows = edits.rows_of(request.positions, frame.positions) or list(range(len(frame.positions)))
        each = request.top + len(asked)
        require_few_tokens(len(rows), each)
        few = max(1, LENS_TOKENS // each)
        value = tap.lens_value(seen.raw, site.selector)[rows]
        off = ~value.any(-1) if site.selector is not None and tap.added is not None else value.new_zeros(len(value))
        found: list[LensRow] = []
        with self._workspace.opened(session) as room:
            if value.device.type == "cpu":  # where tokens share their memory with sessions
                yield from room.take(len(rows) * each * TOKEN_BYTES)
            for start in range(0, len(rows), LENS_ROWS):
                chosen = rows[start : start + LENS_ROWS]
                logits = self._forward.lens(value[start : start + LENS_ROWS])
                positions = [frame.positions[row] for row in chosen]
                tokens = [frame.tokens[row] for row in chosen]
                leading_spaces.see(logits, positions)
                for first in range(0, len(chosen), few):
                    some = slice(first, first + few)
                    found += reports.lens_rows(
                        self._runtime, logits[some], positions[some], tokens[some], request.top, asked
                    )
                    yield None
        found = [reports.unread(row) if is_off else row for row, is_off in zip(found, off.tolist(), strict=True)]
        here = msgspec.structs.replace(request, site=str(site), tokens=tuple(asked))
        made, unmade = self._recipe(session, here, tap)
        return replies.LensRead(
            stop=reports.stop_identity(session),
            site=str(tap.lens_site(site)),
            rows=tuple(found),
            notes=leading_spaces.notes,
            made=made,
            unmade=unmade,
        )

    def _recipe(
        self, session: Session, asked: ask.Inspect | ask.Lens | ask.MeasureEffect, tap: Tap
    ) -> tuple[LookRecipe | None, str]:
        return look_recipe(self._persistence.identity, self._runtime.description, session, asked, tap)

    @handles(ask.Evaluate)
    def evaluate(self, request: ask.Evaluate, session: Session, holder: Holder) -> Steps[replies.Evaluated]:
        frame, site, tap = self._looked_at(request, session)
        condition = checked_condition(self._runtime, request.expression, tap, site)
        seen = yield from queries.value_at(self._runtime.of(session), session, tap, ahead=False)
        site_value = SiteValue(
            tap=tap,
            raw=seen.raw,
            tokens=frame.tokens,
            positions=frame.positions,
            step=frame.step,
            lens=self._forward.lens_at(tap),
        )
        rows = edits.rows_of((request.position,), site_value.row_positions())
        assert rows is not None
        value = evaluate(condition, site_value, site, rows[0], self._tokenizer.text_of, self._tokenizer.token_id)
        _require_tellable(value, request.expression)
        position = site_value.row_positions()[rows[0]]
        return replies.Evaluated(stop=reports.stop_identity(session), value=value, site=str(site), position=position)

    def _looked_at(
        self, request: ask.Inspect | ask.ReadPooled | ask.ReadFigures | ask.Lens | ask.Evaluate, session: Session
    ) -> tuple[Frame, Site, Tap]:
        """Return the frame of the session's stop, the requested site, and its tap."""
        frame = queries.stopped_frame(session)
        site = reports.site_of(session) if request.site is None else self._runtime.site(request.site)
        return frame, site, self._runtime.of(session).resolve(site)

    @handles(ask.ReadWatch)
    def read_watch(self, request: ask.ReadWatch, session: Session, holder: Holder) -> replies.WatchRead:
        watch = interventions.watch_of(session, self._runtime.site(request.site), request.direction)
        require_few_passes(request.site, len(watch.values), watch.bytes_held)
        made, unmade = watch_recipe(self._persistence.identity, self._runtime.description, session, watch)
        return replies.WatchRead(
            watch=watch.describe(),
            axes=watch.axes,
            values=tuple(to_array(value) for value in watch.values),
            positions=tuple(watch.positions),
            runs=tuple(watch.runs),
            made=made,
            unmade=unmade,
        )

    @handles(ask.ReadStop)
    def read_stop(self, request: ask.ReadStop, session: Session, holder: Holder) -> replies.Paused:
        queries.stopped_frame(session)
        return reports.paused(self._runtime, session)

    @handles(ask.ReadLogits)
    def read_logits(self, request: ask.ReadLogits, session: Session, holder: Holder) -> replies.Logits:
        return replies.Logits(logits=to_array(last_logits(session)), stop=reports.stop_identity(session))

    @handles(ask.ReadMetrics)
    def read_metrics(self, request: ask.ReadMetrics, session: Session, holder: Holder) -> replies.MetricsRead:
        metrics = metrics_in(self._runtime, request.metrics)
        return replies.MetricsRead(values=metrics.of(last_logits(session)))

    @handles(ask.ReadHistory)
    def read_history(self, request: ask.ReadHistory, session: Session, holder: Holder) -> replies.History:
        history = session.history
        return replies.History(stops=history.describe(), present=history.present)

    @handles(ask.ReadPass)
    def read_pass(self, request: ask.ReadPass, session: Session, holder: Holder) -> Steps[replies.PassRead]:
        frame, runtime, room = _frame_read(session, request), self._runtime.of(session), Room()
        places = {text: runtime.site(text) for text in dict.fromkeys(request.sites)}
        seen = {text: Seen(site=site, tap=runtime.resolve(site), room=room) for text, site in places.items()}
        if request.logits:
            require_answerable(len(frame.positions), runtime.description.vocab_size)
        below = [one for one in seen.values() if queries.may_be_reached(one.tap, frame)]
        if below:
            yield from queries.as_it_went(runtime, session, frame, below)
        logits_TV = None
        if request.ahead or request.logits:
            ahead = [one for one in seen.values() if one.value is None]
            logits_TV = yield from queries.as_it_would_go_on(runtime, session, frame, ahead)
        met = {text: one.value for text, one in seen.items() if one.value is not None}
        return replies.PassRead(
            stop=reports.stop_identity(session),
            sites=tuple(met),
            values=tuple(handed_over(value) for value in met.values()),
            logits=None if logits_TV is None or not request.logits else handed_over(logits_TV.float()),
        )

    @handles(ask.Compare)
    def compare(self, request: ask.Compare, session: Session, holder: Holder) -> Steps[Compared]:
        other = self._sessions.find(request.other)
        queries.stopped_frame(other)
        yield from brought(other, self._sessions, self._residency)
        return compared((session, other), request.last)


def _require_tellable(value: object, expression: str) -> None:
    if not isinstance(value, bool | int | float | str):
        raise InvalidCondition(f"{expression!r} is {value!r} there; ask for one number, truth or text.")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise InvalidCondition(f"{expression!r} is a whole number of more than 64 bits there; divide it, as in x / 2.")
    if isinstance(value, str) and sendable(value, len(value)) != value:
        raise InvalidCondition(f"{expression!r} has one half of a surrogate pair, which is no character.")


def token_id(runtime: Runtime, token: int | str) -> int:
    token = runtime.tokenizer.token_id(token) if isinstance(token, str) else token
    if token >= runtime.description.vocab_size:
        raise UsageError(f"There is no token {token}: this model has {runtime.description.vocab_size:,}.")
    return token


def metrics_in(runtime: Runtime, texts: Sequence[str]) -> Metrics:
    """Return the metrics in these texts. Raises InvalidCondition."""
    metrics = Metrics.parse(texts, runtime.tokenizer)
    for metric in metrics.each:
        require_known_tokens(runtime, metric.condition)
    return metrics


def last_logits(session: Session) -> Tensor:
    """Return the final logits [V] of the last finished pass. Raises UsageError and IllegalMove where there are none."""
    if session.logits_1V is None:
        raise UsageError(
            f"Session {in_quotes(session.name)} has finished no pass yet, so there are no logits; run a prompt."
        )
    if session.state != "idle":
        raise IllegalMove(
            f"Session {in_quotes(session.name)} is {session.state}; its logits are there when the pass is through."
        )
    return session.logits_1V[0]


@dataclass(slots=True, kw_only=True)
class Seen:
    """Keeps the values of one site in a pass, on the host, within the `room` of one answer."""

    site: Site
    tap: Tap
    room: Room
    value: Tensor | None = None

    def mark(self) -> Callable[[], None]:
        """Return a no-op: a value seen again replaces the earlier one."""
        return lambda: None

    def observe(self, site_value: SiteValue) -> None:
        part = edits.take(site_value.value.detach(), None, self.site.selector)
        if self.value is None:
            self.room.take(part.numel() * part.element_size())
        self.value = part.to("cpu", copy=True)


def _frame_read(session: Session, request: ask.ReadPass) -> Frame:
    """Return the frame of the stop with the request's value, which stays out of the session. Raises InvalidEdit."""
    frame = queries.stopped_frame(session)
    if request.value is None:
        return frame
    assert frame.tap is not None
    history.require_editable(frame.tap)
    site, number = reports.site_of(session), len(session.edits) + 1
    return history.make(frame, Set(value=request.value), site, request.positions, number=number).frame


def compared(both: tuple[Session, Session], last: int) -> Compared:
    """Return the distance of the stopped values of two sessions: for the heads or features that both name, else whole.
    UsageError where they are stopped at other sites."""
    frames = [queries.stopped_frame(session) for session in both]
    sites = [reports.site_of(session) for session in both]
    if sites[0] != sites[1]:
        sites = [site.whole() for site in sites]
    if sites[0] != sites[1]:
        names = [in_quotes(label(session.name)) for session in both]
        raise UsageError(
            f"Session {names[0]} stands at {sites[0]} and {names[1]} at {sites[1]}: values are compared at one site."
        )
    a, b = (_value(frame, sites[0]) for frame in frames)
    rows_a, rows_b = frames[0].positions[-len(a) :], frames[1].positions[-len(b) :]
    shared = range(max(rows_a.start, rows_b.start), min(rows_a.stop, rows_b.stop))
    alike = bool(shared) and a.shape[1:] == b.shape[1:]
    return Compared(
        site=str(sites[0]),
        stops=(reports.stop_identity(both[0]), reports.stop_identity(both[1])),
        shapes=(tuple(a.shape), tuple(b.shape)),
        dtypes=(dtype_name(a.dtype), dtype_name(b.dtype)),
        apart=_numbered(apart(_at(shared, rows_a, a), _at(shared, rows_b, b), tuple(shared), last), sites[0])
        if alike
        else None,
    )


def _numbered(found: Apart, site: Site) -> Apart:
    """Return the same with the largest difference at the head or feature in the model's numbering."""
    largest = found.largest
    if largest is None or site.selector is None:
        return found
    index = (site.selector[largest.index[0]], *largest.index[1:])
    return msgspec.structs.replace(found, largest=msgspec.structs.replace(largest, index=index))


def _value(frame: Frame, site: Site) -> Tensor:
    assert frame.tap is not None
    assert frame.raw is not None
    return edits.take(frame.tap.read(frame.raw), None, site.selector)


def _at(shared: range, positions: range, value: Tensor) -> Tensor:
    """Return the rows of the shared positions."""
    return value[positions.index(shared.start) :][: len(shared)]


def apart(a: Tensor, b: Tensor, positions: tuple[int, ...], last: int) -> Apart:
    """Return the distance of two values [T, ...] of one shape; `positions` are those of their rows."""
    differing = not_finite = 0
    largest: LargestDifference | None = None
    distances: list[float | None] = []
    first = 0
    for rows_a, rows_b in zip(chunks(a), chunks(b.to(a.device)), strict=True):
        differ = (rows_a != rows_b) & ~(rows_a.isnan() & rows_b.isnan())
        finite = rows_a.isfinite() & rows_b.isfinite()
        differences = (rows_b - rows_a).abs().where(finite, 0.0)
        differing += int(differ.sum())
        not_finite += int((differ & ~finite).sum())
        found = _largest(differences, rows_a, rows_b, positions[first:], a.shape[1:])
        if found is not None and (largest is None or found.difference > largest.difference):
            largest = found
        distances += _distances(differences, rows_a.where(finite, 0.0))
        first += len(rows_a)
    return Apart(
        positions=positions[-last:],
        numbers=a.numel(),
        differing=differing,
        not_finite=not_finite,
        largest=largest,
        distances=tuple(distances[-last:]),
    )


def _largest(
    differences: Tensor, a: Tensor, b: Tensor, positions: tuple[int, ...], inner: torch.Size
) -> LargestDifference | None:
    place = int(differences.argmax())
    row, column = divmod(place, differences.shape[1])
    difference = float(differences[row, column])
    if difference == 0:
        return None
    index = [int(one) for one in torch.unravel_index(torch.tensor(column), inner)] if inner else []
    return LargestDifference(
        difference=difference,
        position=positions[row],
        index=tuple(index),
        a=float(a[row, column]),
        b=float(b[row, column]),
    )


def _distances(differences: Tensor, a: Tensor) -> list[float | None]:
    """Return |b - a| / |a| of each row; None where |a| is zero."""
    apart, sizes = (torch.linalg.vector_norm(rows, dim=1).tolist() for rows in (differences, a))
    return [distance / size if size else None for distance, size in zip(apart, sizes, strict=True)]
