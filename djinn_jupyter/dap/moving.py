"""Moves: go on, step, go back, pause. The request is answered when the engine has accepted the move; an event reports
its end.

Also shows what other clients do with a session: a notebook's run appears in the editor like the editor's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from djinn_jupyter.client.session import RemoteSession
from djinn_jupyter.client.stops import Finished, Paused, Stop
from djinn_jupyter.dap.conversation import Asked
from djinn_jupyter.dap.followed import Followed, Move, MoveName
from djinn_jupyter.dap.values import Look
from djinn_jupyter.errors import DjinnError, IllegalMove, UsageError
from djinn_jupyter.wire.nouns import StopIdentity
from djinn_jupyter.wire.replies import (
    Event,
    SessionClosed,
    SessionEdited,
    SessionFailed,
    SessionFinished,
    SessionOpened,
    SessionPaused,
    SessionRunning,
    TokenSampled,
)

if TYPE_CHECKING:
    from djinn_jupyter.dap.adapter import Adapter

Verb = Callable[[RemoteSession, StopIdentity | None], Stop]  # given the session and the stop that the editor shows
ACCEPTED: Final[dict[str, dict[str, Any]]] = {
    "continue": {"allThreadsContinued": False},
    "evaluate": {"result": "", "variablesReference": 0},
}
LAST_EVENT_SECONDS = 2.0  # reply and events travel on two sockets
REASONS: Final = {"breakpoint": "breakpoint", "step": "step", "interrupt": "pause", "back": "step", "fork": "entry"}

# --- moves of this editor --------------------------------------------------------------------------------------------


def set_off(adapter: Adapter, one: Followed, asked: Asked | None, name: MoveName, verb: Verb) -> None:
    """Start a move and return at once. IllegalMove while another move is in progress."""
    if one.move is not None:
        raise IllegalMove(f"Session {one.session.label!r} is running; pause it first.")
    move, seen = Move(name=name, asked=asked), one.seen
    one.move = move
    adapter.work(lambda: verb(one.session, seen), lambda outcome: _replied(adapter, one, move, outcome))


def go_on(adapter: Adapter, one: Followed, asked: Asked | None, name: MoveName, verb: Verb) -> None:
    one.require_stopped()
    set_off(adapter, one, asked, name, verb)


def _accept(adapter: Adapter, one: Followed, move: Move) -> None:
    """Answer a move that the engine has accepted, and drop the variables shown of the stop that it left."""
    asked, move.asked = move.asked, None
    one.left()
    adapter.references.forget(one.number)
    if asked is not None:
        adapter.conversation.respond(asked, ACCEPTED.get(asked.command))


def _replied(adapter: Adapter, one: Followed, move: Move, outcome: Stop | DjinnError) -> None:
    if isinstance(outcome, DjinnError):
        _failed(adapter, one, move, outcome)
        return
    _accept(adapter, one, move)
    move.outcome, move.deadline = outcome, adapter.clock + LAST_EVENT_SECONDS
    if move.ended:
        _settle(adapter, one, move)


def _failed(adapter: Adapter, one: Followed, move: Move, error: DjinnError) -> None:
    """Report a failed move: refused before it began, the session keeps its stop; failed later, its run is over."""
    one.move = None
    if move.asked is not None:
        adapter.conversation.refuse(move.asked, error)
        return
    one.state = "idle"
    adapter.conversation.write(f"{error}\n", "stderr")
    if one is adapter.first and adapter.launched:
        adapter.terminated()


def _settle(adapter: Adapter, one: Followed, move: Move) -> None:
    one.move = None
    outcome = move.outcome
    assert outcome is not None
    if isinstance(outcome, Finished):
        _finished(adapter, one, outcome)
    elif move.name in ("run", "continue") and one.book.passes_by(outcome):
        set_off(adapter, one, None, "continue", lambda session, _: session.resume(stop=outcome.reply.stop))
    else:
        _stopped(adapter, one, outcome)


def waits(adapter: Adapter) -> Iterator[float]:
    """Yield the seconds until each replied move counts as over without its last event."""
    for one in adapter.followed.values():
        if one.move is not None and one.move.deadline is not None:
            yield max(0.0, one.move.deadline - adapter.clock)


def settle_late(adapter: Adapter) -> None:
    for one in adapter.followed.values():
        if one.move is not None and one.move.deadline is not None and one.move.deadline <= adapter.clock:
            _settle(adapter, one, one.move)


# --- events of the engine --------------------------------------------------------------------------------------------


def hear(adapter: Adapter, event: Event) -> None:
    one = adapter.named(event.session)
    if one is None:
        if isinstance(event, SessionOpened) and adapter.follows_all:
            follow(adapter, event.session)
        return
    move = one.move
    match event:
        case TokenSampled() if event.text:
            adapter.conversation.write(event.text, "stdout")
        case SessionRunning():
            if move is not None:
                _accept(adapter, one, move)
            else:
                _continued(adapter, one)
        case SessionPaused() | SessionFinished() | SessionFailed() if move is not None:
            move.ended = True
            if move.outcome is not None:
                _settle(adapter, one, move)
        case SessionPaused():
            show_stop(adapter, one)
        case SessionFinished():
            one.state = "idle"
            adapter.conversation.write(f"\n{one.session.label} finished ({event.reason}).\n")
        case SessionFailed():
            one.state = "idle"
            adapter.conversation.write(f"{event.message}\n", "stderr")
        case SessionEdited(stop=stop):
            _edited(adapter, one, stop)
        case SessionClosed():
            _closed(adapter, one)


def follow(adapter: Adapter, name: str) -> Followed:
    """Add a session as a thread."""
    return follow_session(adapter, RemoteSession(adapter.engine.channel, name))


def follow_session(adapter: Adapter, session: RemoteSession) -> Followed:
    number = max(adapter.followed, default=adapter.first_thread - 1) + 1
    one = adapter.follow(Followed(number=number, session=session))
    if one is not adapter.first:
        adapter.conversation.tell("thread", {"reason": "started", "threadId": one.number})
    return one


def _edited(adapter: Adapter, one: Followed, stop: StopIdentity) -> None:
    """Refresh the shown stop after an edit by another client, recognized by a stop identity other than the shown
    one."""
    if one.look is not None and one.move is None and stop != one.look.identity:
        try:
            one.look.refresh()
        except IllegalMove:
            return  # it has gone on already, which will be heard
        tell_invalidated(adapter, one)


def tell_invalidated(adapter: Adapter, one: Followed) -> None:
    """Tell the editor that the shown variables are out of date, if it supports that event."""
    if adapter.client.supports_invalidated_event:
        adapter.conversation.tell("invalidated", {"areas": ["variables"], "threadId": one.number})


def _continued(adapter: Adapter, one: Followed) -> None:
    one.left()
    adapter.references.forget(one.number)
    adapter.conversation.tell("continued", {"threadId": one.number, "allThreadsContinued": False})


def _closed(adapter: Adapter, one: Followed) -> None:
    adapter.references.forget(one.number)
    if one is adapter.first:
        one.state = "idle"
        adapter.terminated()
        return
    del adapter.followed[one.number]
    adapter.conversation.tell("thread", {"reason": "exited", "threadId": one.number})


def show_stop(adapter: Adapter, one: Followed) -> None:
    """Show a stop that another client's move reached, or that existed before this conversation."""
    try:
        stop = one.session.stop
    except IllegalMove:
        return  # it has gone on already, which will be heard
    adapter.references.forget(one.number)
    _stopped(adapter, one, stop)


def _stopped(adapter: Adapter, one: Followed, stop: Paused) -> None:
    one.arrived(stop, Look(one.session, stop))
    adapter.conversation.tell("stopped", _why(adapter, one, stop))


def _why(adapter: Adapter, one: Followed, stop: Paused) -> dict[str, Any]:
    met = stop.reply.breakpoint
    reason = REASONS[stop.reason]
    if reason == "breakpoint" and one.book.kind_of(stop) == "function":
        reason = "function breakpoint"
    said: dict[str, Any] = {
        "reason": reason,
        "description": f"Paused at {stop.site}",
        "text": repr(stop),
        "threadId": one.number,
        "allThreadsStopped": len(adapter.followed) == 1,
    }
    if reason.endswith("breakpoint") and met is not None and one is adapter.first:
        said["hitBreakpointIds"] = [met.number]
    return said


def _finished(adapter: Adapter, one: Followed, outcome: Finished) -> None:
    one.state = "idle"
    detail = f", {outcome.detail}" if outcome.detail else ""
    adapter.conversation.write(f"\n{one.session.label} finished ({outcome.reason}{detail}).\n")
    if one is adapter.first and adapter.launched:
        adapter.conversation.tell("exited", {"exitCode": 0})
        adapter.terminated()


# --- going back ------------------------------------------------------------------------------------------------------


def back(session: RemoteSession, seen: StopIdentity | None) -> Paused:
    """Go back to the previous stop; from the oldest stop, one layer back in its pass."""
    present = session.history().present
    return session.back(1, by="stop" if present is None or present > 0 else "layer", stop=seen)


def back_to_breakpoint(session: RemoteSession, seen: StopIdentity | None) -> Paused:
    """Go back to the last stop before this one at which a breakpoint was hit; UsageError if there is none."""
    history = session.history()
    here = len(history.stops) if history.present is None else history.present
    met = [stop.index for stop in history.stops[:here] if stop.reason == "breakpoint"]
    if not met:
        raise UsageError("No breakpoint was met before this stop; go back by steps.")
    return session.back(here - met[-1], stop=seen)


def pause(adapter: Adapter, one: Followed) -> None:
    if not one.session.pause():
        raise IllegalMove(f"Session {one.session.label!r} is not running, so there is nothing to pause.")
