"""Look at a stopped pass and at recorded values. Changes nothing."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec
from torch import Tensor

from djinn_jupyter.engine.forward.frame import Frame
from djinn_jupyter.engine.interventions import edits
from djinn_jupyter.engine.interventions.metric import Metrics
from djinn_jupyter.engine.interventions.site_scope import evaluate
from djinn_jupyter.engine.interventions.site_value import SiteValue
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests import interventions
from djinn_jupyter.engine.requests.answer_sizes import TOKEN_BYTES, require_few_passes, require_few_tokens
from djinn_jupyter.engine.requests.figures import figures_for
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.look_recipes import look_recipe
from djinn_jupyter.engine.requests.making_rules import checked_condition, require_known_tokens
from djinn_jupyter.engine.requests.pooling import PartOfPass, pooled_for
from djinn_jupyter.engine.requests.watch_recipes import watch_recipe
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import queries, reports
from djinn_jupyter.engine.session.influences import influences
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.session.unspaced import Unspaced
from djinn_jupyter.engine.system.arrays import dtype_name, to_array
from djinn_jupyter.errors import IllegalMove, InvalidCondition, UnknownSite, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.looks import LookRecipe
from djinn_jupyter.wire.nouns import LensRow, Snapshot
from djinn_jupyter.wire.replies import (
    Effect,
    Evaluated,
    FiguresRead,
    History,
    Inspected,
    LensRead,
    Logits,
    MetricsRead,
    Paused,
    PooledRead,
    WatchRead,
)
from djinn_jupyter.wire.sites import Site
from djinn_jupyter.wire.texts import in_quotes, sendable

LENS_ROWS = 64
LENS_TOKENS = 8192  # that are spelled before others are answered


class InspectionRequests:
    def __init__(self, runtime: Runtime, workspace: Workspace, persistence: Persistence) -> None:
        self._runtime, self._workspace = runtime, workspace
        self._persistence = persistence
        self._forward, self._tokenizer = runtime.forward, runtime.tokenizer

    @handles(ask.MeasureEffect)
    def measure_effect(self, request: ask.MeasureEffect, session: Session, holder: Holder) -> Steps[Effect]:
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
        return Effect(
            stop=reports.standing(session),
            effect=reports.effect(self._runtime, before, after, request.top, asked),
            site=str(stop.site),
            edits=session.edits_in_force,
            influences=influences(session, frame),
            made=made,
            unmade=unmade,
        )

    @handles(ask.Inspect)
    def inspect(self, request: ask.Inspect, session: Session, holder: Holder) -> Steps[Inspected]:
        part = yield from self._part(request, session)
        _, site, tap = self._looked_at(request, session)
        made, unmade = self._recipe(session, msgspec.structs.replace(request, site=str(site)), tap)
        return Inspected(
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
    def read_pooled(self, request: ask.ReadPooled, session: Session, holder: Holder) -> Steps[PooledRead]:
        part = yield from self._part(request, session)
        return PooledRead(pooled=pooled_for(request, part))

    @handles(ask.ReadFigures)
    def read_figures(self, request: ask.ReadFigures, session: Session, holder: Holder) -> Steps[FiguresRead]:
        part = yield from self._part(request, session)
        return figures_for(part, each=request.each)

    def _part(
        self, request: ask.Inspect | ask.ReadPooled | ask.ReadFigures, session: Session
    ) -> Generator[Blocked | None, None, PartOfPass]:
        """Return the values that are asked for, of the stopped pass or ahead of it."""
        frame, site, tap = self._looked_at(request, session)
        ahead = not isinstance(request, ask.ReadFigures) and request.ahead
        seen = yield from queries.value_at(self._runtime.of(session), session, tap, ahead)
        value = tap.read(seen.raw)
        available = frame.positions[len(frame.positions) - value.shape[0] :]
        rows = edits.rows_of(request.positions, available)
        return PartOfPass(
            stop=reports.standing(session),
            site=site,
            axes=tap.axes,
            value=edits.take(value, rows, site.selector),
            positions=tuple(available if rows is None else (available[row] for row in rows)),
            exactness=session.exactness if seen.exactness == "exact" else seen.exactness,
        )

    @handles(ask.Lens)
    def lens(self, request: ask.Lens, session: Session, holder: Holder) -> Steps[LensRead]:
        frame, site, tap = self._looked_at(request, session)
        if site.point == "logits":
            raise UnknownSite("The logits are the end of the network already; ask for their top with the run's result.")
        if tap.lens_width != self._forward.anatomy.hidden_size:
            raise UnknownSite(
                f"The logit lens reads values of the residual stream's width {self._forward.anatomy.hidden_size}; "
                f"{tap.site.whole()} is {tap.axes} with {tap.width}."
            )
        asked = [token_id(self._runtime, token) for token in request.tokens]
        unspaced = Unspaced(self._tokenizer, request.tokens)
        seen = yield from queries.value_at(self._runtime.of(session), session, tap, ahead=False)
        rows = edits.rows_of(request.positions, frame.positions) or list(range(len(frame.positions)))
        each = request.top + len(asked)
        require_few_tokens(len(rows), each)
        few = max(1, LENS_TOKENS // each)
        value = tap.lens_value(seen.raw, site.selector)[rows]
        off = ~value.any(-1) if site.selector is not None and tap.added is not None else value.new_zeros(len(value))
        found: list[LensRow] = []
        with self._workspace.opened(session) as room:
            if value.device.type == "cpu":  # where tokens take of the same memory as sessions
                yield from room.take(len(rows) * each * TOKEN_BYTES)
            for start in range(0, len(rows), LENS_ROWS):
                chosen = rows[start : start + LENS_ROWS]
                logits = self._forward.lens(value[start : start + LENS_ROWS])
                positions = [frame.positions[row] for row in chosen]
                tokens = [frame.tokens[row] for row in chosen]
                unspaced.see(logits, positions)
                for first in range(0, len(chosen), few):
                    some = slice(first, first + few)
                    found += reports.lens_rows(
                        self._runtime, logits[some], positions[some], tokens[some], request.top, asked
                    )
                    yield None
        found = [reports.unread(row) if is_off else row for row, is_off in zip(found, off.tolist(), strict=True)]
        here = msgspec.structs.replace(request, site=str(site), tokens=tuple(asked))
        made, unmade = self._recipe(session, here, tap)
        return LensRead(
            stop=reports.standing(session),
            site=str(tap.lens_site(site)),
            rows=tuple(found),
            notes=unspaced.notes,
            made=made,
            unmade=unmade,
        )

    def _recipe(
        self, session: Session, asked: ask.Inspect | ask.Lens | ask.MeasureEffect, tap: Tap
    ) -> tuple[LookRecipe | None, str]:
        return look_recipe(self._persistence.identity, self._runtime.description, session, asked, tap)

    @handles(ask.Evaluate)
    def evaluate(self, request: ask.Evaluate, session: Session, holder: Holder) -> Steps[Evaluated]:
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
        return Evaluated(stop=reports.standing(session), value=value, site=str(site), position=position)

    def _looked_at(
        self, request: ask.Inspect | ask.ReadPooled | ask.ReadFigures | ask.Lens | ask.Evaluate, session: Session
    ) -> tuple[Frame, Site, Tap]:
        """Return the frame that the session is stopped in, the site that is asked for, and its tap."""
        frame = queries.stopped_frame(session)
        site = reports.site_of(session) if request.site is None else self._runtime.site(request.site)
        return frame, site, self._runtime.of(session).resolve(site)

    @handles(ask.ReadWatch)
    def read_watch(self, request: ask.ReadWatch, session: Session, holder: Holder) -> WatchRead:
        watch = interventions.watch_of(session, self._runtime.site(request.site), request.direction)
        require_few_passes(request.site, len(watch.values), watch.bytes_held)
        made, unmade = watch_recipe(self._persistence.identity, self._runtime.description, session, watch)
        return WatchRead(
            watch=watch.describe(),
            axes=watch.axes,
            values=tuple(to_array(value) for value in watch.values),
            positions=tuple(watch.positions),
            runs=tuple(watch.runs),
            made=made,
            unmade=unmade,
        )

    @handles(ask.ReadStop)
    def read_stop(self, request: ask.ReadStop, session: Session, holder: Holder) -> Paused:
        queries.stopped_frame(session)
        return reports.paused(self._runtime, session)

    @handles(ask.ReadLogits)
    def read_logits(self, request: ask.ReadLogits, session: Session, holder: Holder) -> Logits:
        return Logits(logits=to_array(last_logits(session)), stop=reports.standing(session))

    @handles(ask.ReadMetrics)
    def read_metrics(self, request: ask.ReadMetrics, session: Session, holder: Holder) -> MetricsRead:
        metrics = metrics_in(self._runtime, request.metrics)
        return MetricsRead(values=metrics.of(last_logits(session)))

    @handles(ask.ReadHistory)
    def read_history(self, request: ask.ReadHistory, session: Session, holder: Holder) -> History:
        history = session.history
        return History(stops=history.describe(), present=history.present)


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
    """Return the logits [V] in which the last finished pass ended. Raises UsageError and IllegalMove where none are."""
    if session.logits_1V is None:
        raise UsageError(
            f"Session {in_quotes(session.name)} has finished no pass yet, so there are no logits; run a prompt."
        )
    if session.state != "idle":
        raise IllegalMove(
            f"Session {in_quotes(session.name)} is {session.state}; its logits are there when the pass is through."
        )
    return session.logits_1V[0]
