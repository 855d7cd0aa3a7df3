"""Changes between two readings of an engine, ignoring the progress of clocks. Values only."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from djinn_jupyter.server.messages import EngineChange, LiveEngine, LiveSession, Sampled
from djinn_jupyter.wire.nouns import EngineStatistics

CLOCK_SECONDS = 1.5  # largest difference between two computations of the same moment


def settled(before: LiveEngine | None, now: LiveEngine) -> LiveEngine:
    """Return `now`, with parts that differ only in clocks and in the count of answered requests taken from `before`."""
    if before is None:
        return now
    statistics = now.statistics
    if before.statistics is not None and statistics is not None and _same_statistics(before.statistics, statistics):
        statistics = before.statistics
    sessions = {name: _settled(before.sessions.get(name), session) for name, session in now.sessions.items()}
    return LiveEngine(found=now.found, statistics=statistics, sessions=sessions)


def change(before: LiveEngine, now: LiveEngine, sampled: Mapping[str, Sampled]) -> EngineChange | None:
    """Return the change to report for an engine; None when nothing is new."""
    closed: dict[str, LiveSession | None] = {name: None for name in before.sessions if name not in now.sessions}
    sessions = closed | {
        name: session for name, session in now.sessions.items() if before.sessions.get(name) != session
    }
    changed = EngineChange(
        found=now.found if now.found != before.found else UNSET,
        statistics=now.statistics if now.statistics and now.statistics != before.statistics else UNSET,
        sessions=sessions or UNSET,
        sampled=dict(sampled) or UNSET,
    )
    return changed if changed != EngineChange() else None


def _same_statistics(before: EngineStatistics, now: EngineStatistics) -> bool:
    clocks = {"uptime_seconds": 0.0, "requests_answered": 0}
    return replace(before, **clocks) == replace(now, **clocks)


def _settled(before: LiveSession | None, now: LiveSession) -> LiveSession:
    if before is None or abs(before.idle_since - now.idle_since) > CLOCK_SECONDS:
        return now
    same = replace(now, idle_since=before.idle_since)
    as_idle = replace(same.described, idle_seconds=before.described.idle_seconds)
    return before if replace(same, described=as_idle) == before else same
