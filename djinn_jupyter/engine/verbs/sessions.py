"""Open, describe, detach, close and fork sessions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from djinn_jupyter.engine.history import History
from djinn_jupyter.engine.line import LineCopies
from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.residency.stop_room import accounted
from djinn_jupyter.engine.session import Session
from djinn_jupyter.engine.steering import Rule
from djinn_jupyter.errors import IllegalMove, SessionHeld, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.names import NOTEBOOK, label, require_showable, told_apart
from djinn_jupyter.wire.nouns import Origin
from djinn_jupyter.wire.replies import Closed, Described, Detached, Opened, SessionClosed

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def open_(engine: Engine, request: ask.Open, holder: Holder) -> Opened:
    session = engine.sessions.get(request.session)
    if session is None:
        require_showable(request.session, "The name of a session")
        if not request.session.endswith(NOTEBOOK):  # a notebook's own path is free, whatever it is shown by
            require_free(request.session, engine.sessions)
        session = engine.add_session(_empty(engine, request.session, holder))
        return Opened(session=session.describe(), created=True)
    held = session.holder is not None and session.holder != holder.name
    if held and not request.join:
        shown = told_apart(engine.sessions)[session.name]
        raise SessionHeld(
            f"Session {shown!r} is open in another kernel; to enter it all the same, add --join "
            f"(%djinn_use {shown} --join, or %djinn_load; in Python join=True), or use another name."
        )
    if not held:
        session.holder = holder.name
    if request.fresh:
        _forget(engine, session)
    return Opened(session=session.describe(), created=False)


def require_free(name: str, names: Collection[str]) -> None:
    """UsageError where a session has that name, or is shown by it: a word is to mean one session."""
    there = name if name in names else next((one for one in names if label(one) == label(name)), None)
    if there is not None:
        full = "" if there == name else f" (in full {there})"
        raise UsageError(f"There is a session {label(name)!r} already{full}; choose another name or close it.")


def _empty(engine: Engine, name: str, holder: Holder) -> Session:
    return Session(
        name=name,
        owner=holder.user,
        holder=holder.name,
        cache=engine.new_cache(),
        history=History(kept=engine.config.stops_kept),
    )


def _forget(engine: Engine, session: Session) -> None:
    """Back to a new session of the same name; refused while it runs."""
    if session.state == "running":
        raise IllegalMove(f"Session {session.name!r} is running; pause it before it is made fresh.")
    fresh = _empty(engine, session.name, Holder(name=session.holder or "", user=session.owner))
    fresh.holder = session.holder
    engine.drop_session(session)
    engine.add_session(fresh)


def describe(engine: Engine, request: ask.Describe, holder: Holder) -> Described:
    return Described(session=engine.session(request.session).describe())


def detach(engine: Engine, request: ask.Detach, holder: Holder) -> Detached:
    session = engine.session(request.session)
    if session.holder == holder.name:
        session.holder = None
    return Detached()


def close(engine: Engine, request: ask.Close, holder: Holder) -> Closed:
    session = engine.session(request.session)
    session.move("close")
    freed = engine.drop_session(session)
    engine.publish(SessionClosed(session=session.name))
    return Closed(pages_freed=freed)


def fork(engine: Engine, request: ask.Fork, holder: Holder) -> Opened:
    parent = engine.session(request.session)
    require_showable(request.name, "The name of a session")
    require_free(request.name, engine.sessions)
    engine.budget.set_aside(parent.cache.recurrent_bytes, by=None)
    lines = LineCopies()
    child = Session(
        name=request.name,
        owner=holder.user,
        holder=holder.name,
        cache=parent.cache.fork(),
        history=parent.history.copy(lines),
        state=parent.state,
        tokens=list(parent.tokens),
        texts=list(parent.texts),
        journal=dict(parent.journal),
        trail=parent.trail.copy(),
        exactness=parent.exactness,
        frame=parent.frame,
        edits=list(parent.edits),
        line=None if parent.line is None else lines(parent.line),
        logits_1V=parent.logits_1V,
        breakpoints={number: replace(b) for number, b in parent.breakpoints.items()},
        rules={number: _own_books(rule) for number, rule in parent.rules.items()},
        numbers_given=parent.numbers_given,
        runs=parent.runs,
        forked_from=_origin(parent),
        rule_numbers_given=parent.rule_numbers_given,
    )
    engine.add_session(child)
    accounted(engine, child)
    return Opened(session=child.describe(), created=True)


def _origin(parent: Session) -> Origin:
    stops = parent.history.stops
    last = parent.history.here or (stops[-1] if stops else None)
    return Origin(session=parent.name, stop=None if last is None else last.number, tokens=len(parent.tokens))


def _own_books(rule: Rule) -> Rule:
    return Rule(
        number=rule.number,
        site=rule.site,
        tap=rule.tap,
        edit=rule.edit,
        positions=rule.positions,
        enabled=rule.enabled,
    )
