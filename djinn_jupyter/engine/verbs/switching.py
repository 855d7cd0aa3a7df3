"""Turn steering rules and edits off and on again, without ending them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from djinn_jupyter.engine import looks, reports, stop_edits
from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.residency.stop_room import accounted
from djinn_jupyter.engine.verbs.changing import rule_of, tell_edited
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Paused, Steered

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine


def enable_rule(engine: Engine, request: ask.EnableRule, holder: Holder) -> Steered:
    session = engine.session(request.session)
    rule = rule_of(session, request.number)
    rule.enabled = request.enabled
    session.plan_version += 1
    return Steered(rule=rule.describe(), existed=True)


def enable_edit(engine: Engine, request: ask.EnableEdit, holder: Holder) -> Paused:
    """Make the edits of the stop anew, from the value that the pass brought."""
    session = engine.session(request.session)
    standing = looks.stopped_frame(session)
    checkpoint = session.history.here
    assert checkpoint is not None and standing.raw is not None
    if not 1 <= request.number <= len(session.edits):
        there = ", ".join(f"{edit.number}: {edit.what}" for edit in session.edits) or "none"
        raise InvalidEdit(f"This stop has no edit {request.number}; there are {there}.")
    wanted = [replace(e, enabled=request.enabled) if e.number == request.number else e for e in session.edits]
    engine.budget.set_aside(standing.raw.nbytes, by=None)
    frame, session.edits = stop_edits.with_edits(checkpoint.frame, wanted)
    session.change_value(frame)
    accounted(engine, session)
    tell_edited(engine, session)
    return reports.paused(engine, session)
