"""Sweeps: check the request and begin the job. The session of a sweep is empty: only its memory is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.requests.bounds import require_empty
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.requests.recipes import modules_at
from djinn_jupyter.engine.session.residence import Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.common.engine.lines import LineSources
from djinn_jupyter.methods.sweep.engine import edits
from djinn_jupyter.methods.sweep.engine.checked_sweep import CheckedSweep, finished_before, recipe_of
from djinn_jupyter.methods.sweep.engine.places import (
    Alignment,
    SweptLine,
    SweptPlaces,
    aligned,
    chosen_positions,
    places_of,
)
from djinn_jupyter.methods.sweep.engine.sweep import SweepWay, every_way
from djinn_jupyter.methods.sweep.engine.together import Together
from djinn_jupyter.methods.sweep.request import CheckSweep, Recipe, Sweep, Swept, source_of
from djinn_jupyter.wire.greeting import Checked
from djinn_jupyter.wire.nouns import AttentionName
from djinn_jupyter.wire.request_base import LARGEST_SINGLE


def handlers(parts: MethodParts) -> tuple[SweepRequests, ...]:
    """Return the handlers of this method's requests."""
    return (SweepRequests(parts),)


class SweepRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._runtime, self._workspace = parts, parts.runtime, parts.workspace("sweeps")
        self._lines = LineSources(parts)

    @cached_property
    def _ways(self) -> list[SweepWay]:
        return every_way(Together(self._runtime))

    @handles(Sweep)
    def sweep(self, request: Sweep, session: Session, holder: Holder) -> Steps[Swept]:
        require_empty(session, "sweep", "dj.sweep")
        self._lines.compute_like((request.corrupted, request.clean), session)
        runtime = self._runtime.of(session)
        way = next(way for way in self._ways if way.takes(request))
        return way.steps(request, runtime, session, self._checked(request, way, runtime, session), self._workspace)

    @handles(CheckSweep)
    def check(self, request: CheckSweep, session: Session, holder: Holder) -> Checked:
        self.sweep(request.asked, session, holder).close()
        return Checked()

    def _checked(self, request: Sweep, way: SweepWay, runtime: Runtime, session: Session) -> CheckedSweep:
        corrupted, notes = self._lines.tokens(request.corrupted)
        clean, more = (None, ()) if request.clean is None else self._lines.tokens(request.clean)
        line, source = (corrupted, clean) if request.into == "corrupted" else (clean, corrupted)
        if line is None:
            raise UsageError("A sweep into the clean line needs that line.")
        metrics = self._lines.metrics(request.metrics)
        way.check_lines(request, metrics, len(line), None if source is None else len(source))
        swept = SweptLine(name=f"{request.into} line", tokens=line, tokenizer=self._runtime.tokenizer)
        places = places_of(
            runtime,
            request.site,
            request.over,
            swept,
            alignment=self._alignment(request, swept, source),
            coefs=request.coefs,
            windows=dict(request.windows),
            in_pairs=request.in_pairs,
        )
        way.check_places(request, places)
        self._check_edit(request, way, places, len(line), None if source is None else len(source))
        attention = session.attention
        adapter = None if session.adapter is None else session.adapter.identity
        meant = msgspec.structs.replace(request, corrupted=corrupted, clean=clean, continued=None, calls=())
        modules = modules_at(places.taps.values())
        recipe = recipe_of(meant, runtime.description, self._parts.identity, attention, adapter, modules)
        finished = finished_before(request.continued, recipe, places.shape, len(request.metrics))
        chosen = _chosen(request.chosen, places)
        made = Recipe(
            asked=meant,
            attention=msgspec.convert(attention, AttentionName | None),
            adapter=adapter,
            by=self._parts.origin(),
            kept=len(finished),
            modules=modules,
        )
        return CheckedSweep(
            request=request,
            places=places,
            line=line,
            source=source,
            metrics=metrics,
            notes=(*notes, *more),
            finished=finished,
            chosen=chosen,
            recipe=recipe,
            made=made,
        )

    def _check_edit(
        self, request: Sweep, way: SweepWay, places: SweptPlaces, corrupted: int, clean: int | None
    ) -> None:
        scales = () if request.noise is None else (request.noise.scale,)
        strange = next((number for number in (*request.coefs, *scales) if not abs(number) <= LARGEST_SINGLE), None)
        if strange is not None:
            raise UsageError(f"A sweep takes numbers that are finite in float32, and {strange} is none.")
        if request.edit is not None:
            for width in dict.fromkeys(tap.width for tap in places.taps.values()):
                edits.check(request.edit, corrupted if width is None else width, coefs=bool(request.coefs))
        elif request.coefs:
            raise UsageError("A sweep over coef needs an edit with a coefficient, such as scale; patching has none.")
        if request.noise is not None:
            self._check_noise(request.noise.positions, corrupted, clean)
        if request.edit is None and clean is None and way.reads_source:
            raise UsageError("A sweep needs a clean line to patch from, or an edit such as zero or scale.")
        if clean is not None and clean != corrupted and (request.noise or edits.reads_a_line(request.edit)):
            self._check_unequal(request, places, corrupted, clean)

    def _check_unequal(self, request: Sweep, places: SweptPlaces, line: int, source: int) -> None:
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

    def _alignment(self, request: Sweep, line: SweptLine, others: tuple[int, ...] | None) -> Alignment:
        if not request.align:
            return chosen_positions(line, request.positions)
        if request.positions or request.noise or others is None:
            raise UsageError(
                "align names the positions of a clean and a corrupted line that correspond, and no others are edited; "
                "leave positions and noise out."
            )
        source = SweptLine(name=f"{source_of(request.into)} line", tokens=others, tokenizer=line.tokenizer)
        return aligned(line, source, request.align)

    def _check_noise(self, positions: Sequence[int], length: int, clean: int | None) -> None:
        if clean is None:
            raise UsageError("A sweep with noise needs the clean line: that is the line it spoils.")
        strange = next((position for position in positions if not -length <= position < length), None)
        if strange is not None:
            raise UsageError(f"Position {strange} is not in the line, which has {length} tokens.")


def _chosen(numbers: tuple[int, ...], places: SweptPlaces) -> frozenset[int] | None:
    """Return the cells to compute, None for all. Raises UsageError for a number that no cell has."""
    cells = math.prod(places.shape)
    strange = next((number for number in numbers if number >= cells), None)
    if strange is not None:
        raise UsageError(f"There is no cell {strange}: this sweep has {cells:,}, numbered from 0 row by row.")
    return frozenset(numbers) or None
