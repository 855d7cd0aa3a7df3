"""Synchronize an editor's breakpoints with those of the session: an editor sends whole lists, the session has single
breakpoints. Breakpoints set by other clients are left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Paused
from djinn_jupyter.dap.hits import Holds, read_hits
from djinn_jupyter.dap.tree import ModelTree
from djinn_jupyter.errors import DjinnError, UnknownBreakpoint, UnknownSession
from djinn_jupyter.wire.nouns import BreakpointDescription

BreakpointKind = Literal["source", "function"]
_refused = count(1_000_000)  # ids of refused breakpoints; set breakpoints have the session's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBreakpoint:
    """A breakpoint requested by the editor. `failure`: the line that it was to stand at has no site."""

    site: str | None
    condition: str | None
    hits: str | None
    failure: DjinnError | None = None


@dataclass(slots=True, kw_only=True)
class EditorBreakpoint:
    """A breakpoint set for the editor. `ours`: the session had none there before, so it is removed with the
    editor's."""

    number: int
    kind: BreakpointKind
    ours: bool
    holds: Holds | None


@dataclass(slots=True)
class BreakpointRecord:
    """The record of those breakpoints of a session that the editor set."""

    _kept: dict[int, EditorBreakpoint] = field(default_factory=dict)

    def replace(
        self, session: RemoteSession, tree: ModelTree, kind: BreakpointKind, wanted: Iterable[WantedBreakpoint]
    ) -> list[dict[str, Any]]:
        """Replace the editor's breakpoints of a kind. Return the protocol's answer for each, also for refused ones."""
        before = {number for number, kept in self._kept.items() if kept.kind == kind}
        known = {point.number for point in session.breakpoints()}
        answers, now = [], set()
        for one in wanted:
            try:
                point = self._set(session, kind, one, known)
            except DjinnError as error:
                answers.append(refused(str(error)))
            else:
                now.add(point.number)
                answers.append(_answer(point, tree))
        self._take_away(session, before - now)
        return answers

    def clear(self, session: RemoteSession) -> None:
        self._take_away(session, set(self._kept))

    def _set(
        self, session: RemoteSession, kind: BreakpointKind, wanted: WantedBreakpoint, known: set[int]
    ) -> BreakpointDescription:
        if wanted.failure is not None:
            raise wanted.failure
        assert wanted.site is not None
        holds = read_hits(wanted.hits)
        point = session.breakpoint(wanted.site, when=(wanted.condition or "").strip() or None)
        former = self._kept.get(point.number)
        ours = former.ours if former is not None else point.number not in known
        self._kept[point.number] = EditorBreakpoint(number=point.number, kind=kind, ours=ours, holds=holds)
        return point

    def _take_away(self, session: RemoteSession, numbers: set[int]) -> None:
        for number in sorted(numbers):
            if self._kept.pop(number).ours:
                try:
                    session.clear(number)
                except (UnknownBreakpoint, UnknownSession):
                    pass  # another client cleared it, or closed the session

    def passes_by(self, stop: Paused) -> bool:
        """Return True where a run goes on from this stop: its breakpoint was hit, but its hit condition does not
        hold."""
        met = stop.reply.breakpoint
        if stop.reason != "breakpoint" or met is None or stop.reply.also:
            return False
        kept = self._kept.get(met.number)
        return kept is not None and kept.holds is not None and not kept.holds(met.hits)

    def kind_of(self, stop: Paused) -> BreakpointKind | None:
        met = stop.reply.breakpoint
        kept = None if met is None else self._kept.get(met.number)
        return None if kept is None else kept.kind


def refused(sentence: str) -> dict[str, Any]:
    """Return the protocol's answer for a refused breakpoint."""
    return {"id": next(_refused), "verified": False, "message": sentence}


def _answer(point: BreakpointDescription, tree: ModelTree) -> dict[str, Any]:
    return {"id": point.number, "verified": True, "line": tree.line_of(point.site), "source": tree.source}
