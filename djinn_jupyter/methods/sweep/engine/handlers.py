"""Sweeps: check the request and begin the job. The session of a sweep is empty: only its memory is used."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from djinn_jupyter.engine.model.hooks.feature_layout import FeatureLayout
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.inspection import last_logits
from djinn_jupyter.engine.requests.lines import require_empty
from djinn_jupyter.engine.requests.origin import modules_at, origin
from djinn_jupyter.engine.requests.workspace import Workspace
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.attributing import Attributing
from djinn_jupyter.methods.attribution.engine.carried import KEYS, QUERIES
from djinn_jupyter.methods.attribution.engine.slopes import require_slopes
from djinn_jupyter.methods.attribution.engine.trial import Trials
from djinn_jupyter.methods.common.engine.alignment import Alignment, SweptLine, aligned, chosen_positions
from djinn_jupyter.methods.common.engine.line_sources import LineSources
from djinn_jupyter.methods.common.engine.metric import Metrics
from djinn_jupyter.methods.common.engine.places import SweptPlaces, places_of
from djinn_jupyter.methods.paths.engine.path_sweep import PathSweeping
from djinn_jupyter.methods.paths.engine.receivers import Receivers
from djinn_jupyter.methods.sweep.engine import swept_edits
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep
from djinn_jupyter.methods.sweep.engine.continuing import finished_before, recipe_of
from djinn_jupyter.methods.sweep.engine.pair_sweep import PairSweeping
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import CheckSweep, Estimate, Recipe, source_of
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.checking import Checked
from djinn_jupyter.wire.limits import LARGEST_SINGLE
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.replies import MetricsRead


class SweepRequests:
    def __init__(
        self, sessions: SessionTable, runtime: Runtime, workspace: Workspace, persistence: Persistence
    ) -> None:
        self._sessions, self._runtime, self._workspace = sessions, runtime, workspace
        self._persistence = persistence
        self._lines, self._together, self._trials = LineSources(sessions, runtime), Together(runtime), Trials()

    @handles(ask.Sweep)
    def sweep(self, request: ask.Sweep, holder: Holder) -> Steps:
        session = require_empty(self._sessions.find(request.session), "sweep", "dj.sweep")
        self._lines.compute_like(request, session)
        runtime = self._runtime.of(session)
        asked = self._checked(request, runtime, session)
        if request.estimate is not None:
            return Attributing(runtime, session, asked, request.estimate, self._trials).steps(self._workspace)
        kind = PairSweeping if asked.receivers is None else PathSweeping
        return kind(runtime, session, asked, self._together).steps(self._workspace)

    @handles(CheckSweep)
    def check(self, request: CheckSweep, holder: Holder) -> Checked:
        self.sweep(request.asked, holder).close()
        return Checked()

    @handles(ask.ReadMetrics)
    def read_metrics(self, request: ask.ReadMetrics, holder: Holder) -> MetricsRead:
        metrics = self._lines.metrics(request.metrics)
        return MetricsRead(values=metrics.of(last_logits(self._sessions.find(request.session))))

    def _checked(self, request: ask.Sweep, runtime: Runtime, session: Session) -> CheckedSweep:
        corrupted, notes = self._lines.tokens(request.corrupted)
        clean, more = (None, ()) if request.clean is None else self._lines.tokens(request.clean)
        line, source = (corrupted, clean) if request.into == "corrupted" else (clean, corrupted)
        if line is None:
            raise UsageError("A sweep into the clean line needs that line.")
        metrics = self._lines.metrics(request.metrics)
        if request.estimate is not None:
            _check_estimate(request, request.estimate, metrics, len(line), None if source is None else len(source))
        places = places_of(
            runtime,
            request.site,
            request.over,
            len(line),
            alignment=self._alignment(request, line, source),
            coefs=request.coefs,
            windows=dict(request.windows),
            in_pairs=request.in_pairs,
        )
        _require_own_points(request, places)
        if request.estimate is not None:
            _check_corrections(request.estimate, places)
        self._check_edit(request, places, len(line), None if source is None else len(source))
        receivers = _receivers(runtime, request, places)
        identity, attention = self._persistence.identity, session.attention
        adapter = None if session.adapter is None else session.adapter.identity
        meant = msgspec.structs.replace(request, corrupted=corrupted, clean=clean, continued=None, calls=())
        modules = modules_at(places.taps.values())
        recipe = recipe_of(meant, runtime.description, identity, attention, adapter, modules)
        finished = finished_before(request.continued, recipe, places.shape, len(request.metrics))
        chosen = _chosen(request.chosen, places)
        made = Recipe(
            asked=meant,
            attention=msgspec.convert(attention, AttentionName | None),
            adapter=adapter,
            by=origin(identity, runtime.description),
            kept=len(finished),
            modules=modules,
        )
        return CheckedSweep(
            places=places,
            line=line,
            source=source,
            edit=request.edit,
            noise=request.noise,
            metrics=metrics,
            mode=request.mode,
            seed=request.seed,
            notes=(*notes, *more),
            receivers=receivers,
            into=request.into,
            pair=request.pair,
            finished=finished,
            chosen=chosen,
            recipe=recipe,
            made=made,
            calls=request.calls,
        )

    def _check_edit(self, request: ask.Sweep, places: SweptPlaces, corrupted: int, clean: int | None) -> None:
        scales = () if request.noise is None else (request.noise.scale,)
        strange = next((number for number in (*request.coefs, *scales) if not abs(number) <= LARGEST_SINGLE), None)
        if strange is not None:
            raise UsageError(f"A sweep takes numbers that are finite in float32, and {strange} is none.")
        if request.edit is not None:
            for width in dict.fromkeys(tap.width for tap in places.taps.values()):
                swept_edits.check(request.edit, corrupted if width is None else width, coefs=bool(request.coefs))
        elif request.coefs:
            raise UsageError("A sweep over coef needs an edit with a coefficient, such as scale; patching has none.")
        if request.noise is not None:
            self._check_noise(request.noise.positions, corrupted, clean)
        if request.edit is None and clean is None and request.estimate is None:
            raise UsageError("A sweep needs a clean line to patch from, or an edit such as zero or scale.")
        if clean is not None and clean != corrupted and (request.noise or swept_edits.reads_a_line(request.edit)):
            self._check_unequal(request, places, corrupted, clean)

    def _check_unequal(self, request: ask.Sweep, places: SweptPlaces, line: int, source: int) -> None:
        many = "1 token" if source == 1 else f"{source} tokens"
        counts = f"The {source_of(request.into)} line has {many} and the {request.into} one {line}"
        if not request.align:
            named = "" if request.receivers else ", or name those that do correspond, with align"
            raise UsageError(
                f"{counts}, so their positions do not correspond; choose texts of equally many tokens{named}."
            )
        maps = next((tap for tap in places.taps.values() if tap.width is None), None)
        if maps is not None:
            raise UsageError(f"{counts}, so {maps.site.point}, which has a column for each, cannot be patched.")

    def _alignment(self, request: ask.Sweep, tokens: tuple[int, ...], others: tuple[int, ...] | None) -> Alignment:
        tokenizer = self._runtime.tokenizer
        line = SweptLine(name=f"{request.into} line", tokens=tokens, tokenizer=tokenizer)
        if not request.align:
            return chosen_positions(line, request.positions)
        if request.positions or request.noise or others is None:
            raise UsageError(
                "align names the positions of a clean and a corrupted line that correspond, and no others are edited; "
                "leave positions and noise out."
            )
        source = SweptLine(name=f"{source_of(request.into)} line", tokens=others, tokenizer=tokenizer)
        return aligned(line, source, request.align)

    def _check_noise(self, positions: Sequence[int], length: int, clean: int | None) -> None:
        if clean is None:
            raise UsageError("A sweep with noise needs the clean line: that is the line it spoils.")
        strange = next((position for position in positions if not -length <= position < length), None)
        if strange is not None:
            raise UsageError(f"Position {strange} is not in the line, which has {length} tokens.")


def _require_own_points(request: ask.Sweep, places: SweptPlaces) -> None:
    """Raise UsageError where gradients or paths are asked for at an added module."""
    if request.estimate is None and not request.receivers:
        return
    for tap in places.taps.values():
        if isinstance(tap.layout, FeatureLayout):
            what = "Gradients estimate" if request.estimate is not None else "Paths lead from"
            raise UsageError(f"{what} the model's own points, and {tap.site} is an added module: sweep it instead.")


def _check_estimate(
    request: ask.Sweep, estimate: Estimate, metrics: Metrics, corrupted: int, clean: int | None
) -> None:
    """Raise InvalidCondition and UsageError for a sweep that gradients cannot estimate."""
    for metric in metrics.each:
        require_slopes(metric)
    others = (request.noise, request.coefs, request.receivers, request.continued, request.chosen)
    if any(others) or request.into == "clean":
        raise UsageError("Gradients estimate a sweep into the corrupted line, of one edit, without noise or paths.")
    if estimate.steps > 1 and (clean is None or clean != corrupted):
        raise UsageError(
            "Integrated gradients go from the corrupted line to the clean one, which has to be as long: give such a "
            "line, or one step."
        )


def _check_corrections(estimate: Estimate, places: SweptPlaces) -> None:
    """Raise UsageError for corrections that say nothing of these places."""
    if "attention" in estimate.corrections:
        if not any(point in (*QUERIES, *KEYS) for point, _ in places.taps):
            raise UsageError(
                "The correction of attention is one of queries and keys; attribute q, k, q_rot or k_rot, or leave it "
                "out."
            )
        if estimate.steps > 1:
            raise UsageError("The correction of attention is of one step: leave it out, or the steps.")


def _chosen(numbers: tuple[int, ...], places: SweptPlaces) -> frozenset[int] | None:
    """Return the cells to compute, None for all. Raises UsageError for a number that no cell has."""
    cells = math.prod(places.shape)
    strange = next((number for number in numbers if number >= cells), None)
    if strange is not None:
        raise UsageError(f"There is no cell {strange}: this sweep has {cells:,}, numbered from 0 row by row.")
    return frozenset(numbers) or None


def _receivers(runtime: Runtime, request: ask.Sweep, places: SweptPlaces) -> Receivers | None:
    if not request.receivers:
        if not request.over:
            raise UsageError("A sweep goes over one axis at least, such as layer.")
        return None
    if request.windows or request.in_pairs:
        raise UsageError("A path has one sender a cell; leave windows and pairs of cells out.")
    return Receivers.of(runtime, request.receivers, places.taps.values())
