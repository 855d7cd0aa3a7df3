"""Lines and metrics as sweeps, attributions and circuits are given them, checked. Runs no pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from djinn_jupyter.engine.interventions.metric import Metrics
from djinn_jupyter.engine.requests.inspection import metrics_in
from djinn_jupyter.engine.requests.lines import require_fit
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.session.influences import has_edits
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.sweep.request import LineSource
from djinn_jupyter.wire.names import label
from djinn_jupyter.wire.texts import in_quotes


class TwoLines(Protocol):
    """A request about two lines, each of which may be a session's."""

    @property
    def corrupted(self) -> LineSource: ...
    @property
    def clean(self) -> LineSource | None: ...


class LineSources:
    """Finds the tokens of lines, and how their sessions compute."""

    def __init__(self, parts: MethodParts) -> None:
        self._sessions, self._runtime = parts.sessions, parts.runtime

    def tokens(self, line: LineSource) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return a line's tokens, and a note where its session would not have run them as a sweep does. Raises
        UsageError and PromptTooLong."""
        if not isinstance(line, str):
            return self._checked(line), ()
        session = self._sessions.find(line)
        if not session.tokens:
            raise UsageError(f"Session {in_quotes(line)} has no tokens yet; run a prompt in it, or give the text.")
        return self._checked(tuple(session.tokens)), _notes_on(session)

    def metrics(self, texts: Sequence[str]) -> Metrics:
        """Return the metrics in these texts. Raises InvalidCondition."""
        return metrics_in(self._runtime, texts)

    def compute_like(self, request: TwoLines, session: Session) -> None:
        """Have the session of a request compute as the sessions do whose lines it is about. Raises UsageError where
        these differ."""
        named = [self._sessions.find(line) for line in (request.corrupted, request.clean) if isinstance(line, str)]
        for way, differs in (("attention", "compute attention in different ways"), ("adapter", "have other adapters")):
            if len({getattr(one, way) for one in named}) > 1:
                raise UsageError(f"The sessions of the two lines {differs}; give one of them by its text.")
        for one in named:
            session.compute_with(one.attention or session.attention, one.adapter or session.adapter)

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        require_fit(self._runtime.description, tokens, "A line")
        return tokens


def _notes_on(session: Session) -> tuple[str, ...]:
    if not session.rules_in_force and not has_edits(session):
        return ()
    return (
        f"The rules and edits of session {in_quotes(label(session.name))} are no part of the sweep: it runs the tokens "
        "alone.",
    )
