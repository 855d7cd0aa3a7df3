"""Edges: check a request and begin its job. The session is empty: only its memory is used."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import msgspec

from djinn_jupyter.engine.gradients.edge_attributing import EdgeAttributing
from djinn_jupyter.engine.gradients.slopes import require_slopes
from djinn_jupyter.engine.gradients.trial import Trials
from djinn_jupyter.engine.persistence.persistence import Persistence
from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.line_sources import LineSources
from djinn_jupyter.engine.requests.lines import require_empty
from djinn_jupyter.engine.requests.origin import origin
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Blocked, Steps
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.engine.sweeps.workspace import Workspace
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edges import EdgeRecipe, EdgesAttributed
from djinn_jupyter.wire.nouns import AttentionName, StopIdentity
from djinn_jupyter.wire.sweeps import LineSource


class EdgeRequests:
    def __init__(
        self, sessions: SessionTable, runtime: Runtime, workspace: Workspace, persistence: Persistence
    ) -> None:
        self._sessions, self._runtime, self._workspace = sessions, runtime, workspace
        self._persistence, self._lines = persistence, LineSources(sessions, runtime)
        self._trials = Trials()

    @handles(ask.AttributeEdges, wakes_weights=True, changes=False)
    def attribute_edges(self, request: ask.AttributeEdges, holder: Holder) -> Steps:
        session = require_empty(self._sessions.find(request.session), "attribution of edges", "dj.edges")
        self._lines.compute_like(request, session)
        (corrupted, notes), (clean, more) = (self._lines.tokens(line) for line in (request.corrupted, request.clean))
        require_alike(clean, corrupted)
        [metric] = self._lines.metrics((request.metric,)).each
        require_slopes(metric)
        runtime = self._runtime.of(session)
        meant = msgspec.structs.replace(request, session="edges", corrupted=corrupted, clean=clean)
        told = _Told(notes=(*notes, *more), stop=self._standing(request.corrupted), made=self._recipe(session, meant))
        under_way = EdgeAttributing(runtime, session, (corrupted, clean), metric, request.steps)
        return told.of(under_way.steps(self._workspace, self._trials))

    def _recipe(self, session: Session, meant: ask.AttributeEdges) -> EdgeRecipe:
        return EdgeRecipe(
            asked=meant,
            attention=msgspec.convert(session.attention, AttentionName | None),
            by=origin(self._persistence.identity, self._runtime.description),
            adapter=None if session.adapter is None else session.adapter.identity,
        )

    def _standing(self, line: LineSource) -> StopIdentity | None:
        """Return where the session stands whose line this is."""
        return self._sessions.find(line).standing if isinstance(line, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The part of a reply besides the scores."""

    notes: tuple[str, ...]
    stop: StopIdentity | None
    made: EdgeRecipe

    def of(self, steps: Generator[Blocked | None, None, EdgesAttributed]) -> Steps:
        reply = yield from steps
        return msgspec.structs.replace(reply, notes=self.notes, stop=self.stop, made=self.made)


def require_alike(clean: tuple[int, ...], corrupted: tuple[int, ...]) -> None:
    """Raise UsageError for lines of unequal length."""
    if len(clean) != len(corrupted):
        raise UsageError(
            f"The clean line has {len(clean)} tokens and the corrupted one {len(corrupted)}: edges go between "
            "positions that both lines have; choose texts of equally many tokens."
        )
