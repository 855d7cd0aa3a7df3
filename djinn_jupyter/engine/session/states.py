"""The states of a session and the moves between them: a table and nothing else.

idle      no run under way: new, finished, or failed back to its last committed step
running   passes are being run for it
paused    a forward pass is stopped
closed    removed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire.nouns import SessionState
from djinn_jupyter.wire.texts import in_quotes

State = TypeVar("State")
AnyMove = TypeVar("AnyMove")
SessionMove = Literal["run", "go_on", "stop", "finish", "fail", "go_back", "rerun", "close"]

MOVES: Final[dict[tuple[SessionState, SessionMove], SessionState]] = {
    ("idle", "run"): "running",
    ("paused", "run"): "running",
    ("paused", "go_on"): "running",
    ("running", "stop"): "paused",
    ("running", "finish"): "idle",
    ("running", "fail"): "idle",
    ("idle", "go_back"): "paused",
    ("paused", "go_back"): "paused",
    ("idle", "close"): "closed",
    ("paused", "close"): "closed",
    ("idle", "rerun"): "running",
    ("paused", "rerun"): "running",
    ("running", "close"): "closed",
}

_REMEDY: Final[dict[tuple[SessionState, SessionMove], str]] = {
    ("running", "run"): "it is running; pause it first",
    ("running", "go_on"): "it is running already",
    ("running", "go_back"): "it is running; pause it first",
    ("idle", "go_on"): "no forward pass is stopped; set a breakpoint and run a prompt",
}


def after(state: SessionState, move: SessionMove, name: str) -> SessionState:
    """Return the state that `move` leads to from `state`. IllegalMove, with the session's name, if there is none."""
    why = _REMEDY.get((state, move), f"it is {state}")
    return follow(MOVES, state, move, f"Session {in_quotes(name)} cannot {move.replace('_', ' ')}: {why}.")


def follow(moves: Mapping[tuple[State, AnyMove], State], state: State, move: AnyMove, refusal: str) -> State:
    """Return the state that `move` leads to from `state`. IllegalMove, with the refusal, if there is none."""
    following = moves.get((state, move))
    if following is None:
        raise IllegalMove(refusal)
    return following
