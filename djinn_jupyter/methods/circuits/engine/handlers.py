"""Edges: check a request and begin its job. The session is empty: only its memory is used."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.passes.conditions import Metric
from djinn_jupyter.engine.requests.bounds import require_empty
from djinn_jupyter.engine.requests.handlers import MethodParts, handles
from djinn_jupyter.engine.session.residence import Blocked, Steps
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.attribution.engine.attributing import Trials
from djinn_jupyter.methods.attribution.engine.estimates import require_slopes
from djinn_jupyter.methods.circuits.engine.edges import EdgeAttributing, most_edges
from djinn_jupyter.methods.circuits.engine.patching import EdgePatching, Recordings
from djinn_jupyter.methods.circuits.request import (
    AttributeEdges,
    CircuitRecipe,
    CircuitsRun,
    EdgeRecipe,
    EdgesAttributed,
    RunCircuits,
)
from djinn_jupyter.methods.common.engine.lines import LineSources, completed
from djinn_jupyter.methods.sweep.request import LineSource
from djinn_jupyter.wire.nouns import AttentionName, StopIdentity


def handlers(parts: MethodParts) -> tuple[EdgeRequests, ...]:
    """Return the handlers of this method's requests."""
    parts.extents["edges"] = most_edges(parts.runtime.forward.anatomy)
    return (EdgeRequests(parts),)


class EdgeRequests:
    def __init__(self, parts: MethodParts) -> None:
        self._parts, self._recordings = parts, Recordings(parts.budget, parts.runtime.space)
        self._lines, self._trials = LineSources(parts), Trials()
        parts.sessions.on_removal(self._recordings.let_go)

    @handles(AttributeEdges)
    def attribute_edges(self, request: AttributeEdges, session: Session, holder: Holder) -> Steps[EdgesAttributed]:
        given = self._given(request, session, "attribution of edges", "dj.edges")
        meant = replace(request, session="edges", corrupted=given.corrupted, clean=given.clean)
        recipe = EdgeRecipe(asked=meant, by=self._parts.origin(), **given.computed)
        stop = self._standing(request.corrupted)
        if request.method == "gradients":
            return completed(self._scores(request, given), notes=given.notes, stop=stop, made=lambda reply: recipe)
        if request.steps > 1:
            raise UsageError("Steps are of gradients: leave them out where edges are patched exactly.")
        patching = EdgePatching(given.runtime, given.session, given.lines, given.metric)

        def made(reply: EdgesAttributed) -> EdgeRecipe:
            return replace(recipe, asked=replace(meant, chosen=patching.chosen))

        effects = patching.effects(self._recordings.workspace, request.chosen)
        return completed(effects, notes=given.notes, stop=stop, made=made)

    def _scores(self, request: AttributeEdges, given: _Given) -> Generator[Blocked | None, None, EdgesAttributed]:
        if request.chosen:
            raise UsageError("Gradients tell all edges at once: choose edges to be patched exactly.")
        require_slopes(given.metric)
        under_way = EdgeAttributing(given.runtime, given.session, given.lines, given.metric, request.steps)
        return under_way.steps(self._recordings.workspace, self._trials)

    @handles(RunCircuits)
    def run_circuits(self, request: RunCircuits, session: Session, holder: Holder) -> Steps[CircuitsRun]:
        given = self._given(request, session, "run of circuits", "dj.circuit")
        meant = replace(request, session="edges", corrupted=given.corrupted, clean=given.clean)
        recipe = CircuitRecipe(asked=meant, by=self._parts.origin(), **given.computed)
        patching = EdgePatching(given.runtime, given.session, given.lines, given.metric)

        def made(reply: CircuitsRun) -> CircuitRecipe:
            return replace(recipe, asked=replace(meant, circuits=request.circuits[: len(reply.values)]))

        steps = patching.circuits(self._recordings, request.circuits)
        return completed(steps, notes=given.notes, made=made)

    def _given(self, request: AttributeEdges | RunCircuits, session: Session, verb: str, opener: str) -> _Given:
        """Return the subject of the request, checked."""
        require_empty(session, verb, opener)
        self._lines.compute_like((request.corrupted, request.clean), session)
        (corrupted, notes), (clean, more) = (self._lines.tokens(line) for line in (request.corrupted, request.clean))
        require_alike(clean, corrupted)
        [metric] = self._lines.metrics((request.metric,)).each
        return _Given(
            session=session,
            runtime=self._parts.runtime.of(session),
            corrupted=corrupted,
            clean=clean,
            metric=metric,
            notes=(*notes, *more),
        )

    def _standing(self, line: LineSource) -> StopIdentity | None:
        """Return the stop of the session with the corrupted prompt."""
        return self._parts.sessions.find(line).stop_identity if isinstance(line, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A request's sequences and metric, and the session and runtime that compute them."""

    session: Session
    runtime: Runtime
    corrupted: tuple[int, ...]
    clean: tuple[int, ...]
    metric: Metric
    notes: tuple[str, ...]

    @property
    def lines(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.corrupted, self.clean

    @property
    def computed(self) -> dict[str, Any]:
        """The attention and the adapter of the passes, for recipes."""
        adapter = self.session.adapter
        return {
            "attention": msgspec.convert(self.session.attention, AttentionName | None),
            "adapter": None if adapter is None else adapter.identity,
        }


def require_alike(clean: tuple[int, ...], corrupted: tuple[int, ...]) -> None:
    """Raise UsageError for sequences of unequal length."""
    if len(clean) != len(corrupted):
        raise UsageError(
            f"The clean line has {len(clean)} tokens and the corrupted one {len(corrupted)}: edges go between "
            "positions that both lines have; choose texts of equally many tokens."
        )
