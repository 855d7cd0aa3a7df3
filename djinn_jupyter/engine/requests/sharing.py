"""The requests that a person may make for another's session that is shared with them: one table, for every request that
names a session. A request that is in neither part of it is the owner's alone."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.access import Access
from djinn_jupyter.wire.checking import CheckSweep
from djinn_jupyter.wire.naming import person_of
from djinn_jupyter.wire.texts import in_quotes

READING: Final[frozenset[type[ask.RequestBase]]] = frozenset(
    {
        ask.Listen,
        ask.Unlisten,
        ask.Describe,
        ask.Detach,
        ask.Fork,
        ask.Inspect,
        ask.ReadPooled,
        ask.ReadFigures,
        ask.Compare,
        ask.Lens,
        ask.Attribute,
        ask.Evaluate,
        ask.MeasureEffect,
        ask.ReadPass,
        ask.ReadStop,
        ask.ReadLogits,
        ask.ReadMetrics,
        ask.ReadHistory,
        ask.ReadWatch,
        ask.Note,
    }
)
WRITING: Final[frozenset[type[ask.RequestBase]]] = frozenset(
    {
        ask.Run,
        ask.Resume,
        ask.ResumeWith,
        ask.Step,
        ask.Pause,
        ask.Back,
        ask.SetBreakpoint,
        ask.EnableBreakpoint,
        ask.ClearBreakpoints,
        ask.ApplyEdit,
        ask.RevertEdits,
        ask.EnableEdit,
        ask.Steer,
        ask.Unsteer,
        ask.EnableRule,
        ask.Watch,
        ask.Unwatch,
        ask.SetAttention,
        ask.Sweep,
        CheckSweep,
        ask.AttributeEdges,
        ask.MakeGraph,
        ask.RunCircuits,
        ask.Score,
        ask.ReadHeads,
        ask.SwapOut,
        ask.SwapIn,
        ask.Rest,
        ask.SaveCheckpoint,
        ask.AcceptRecomputed,
    }
)


def require_granted(request: ask.RequestBase, session: str, access: Access) -> None:
    """Raise UsageError where a person with this access to `session` may not ask so."""
    kind = type(request)
    if kind in READING or (kind in WRITING and access == "write"):
        return
    owner = person_of(session)
    if kind in WRITING:
        raise UsageError(
            f"Session {in_quotes(session)} is shared with you to read: fork it (%djinn_fork) and work on that, or ask "
            f"{owner} to share it with --write."
        )
    raise UsageError(f"Session {in_quotes(session)} is shared with you; this is for {owner} alone, whose it is.")
