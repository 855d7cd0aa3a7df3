"""Turn steering rules and edits off and on again, without ending them."""

from __future__ import annotations

from dataclasses import replace

from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.requests.interventions import rule_of, tell_edited
from djinn_jupyter.engine.residency.residency import Residency
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session import queries, reports, stop_edits
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Paused, Steered


class SwitchingRequests:
    def __init__(self, runtime: Runtime, residency: Residency) -> None:
        self._runtime, self._residency = runtime, residency

    @handles(ask.EnableRule)
    def enable_rule(self, request: ask.EnableRule, session: Session, holder: Holder) -> Steered:
        rule = rule_of(session, request.number)
        rule.enable(request.enabled)
        session.steer(rule)
        return Steered(rule=rule.describe(), existed=True)

    @handles(ask.EnableEdit)
    def enable_edit(self, request: ask.EnableEdit, session: Session, holder: Holder) -> Paused:
        """Make the edits of the stop again, from the value that the pass computed."""
        standing = queries.stopped_frame(session)
        stop = session.history.here
        assert stop is not None and standing.raw is not None
        if not 1 <= request.number <= len(session.edits):
            there = ", ".join(f"{edit.number}: {edit.what}" for edit in session.edits) or "none"
            raise InvalidEdit(f"This stop has no edit {request.number}; there are {there}.")
        wanted = [replace(e, enabled=request.enabled) if e.number == request.number else e for e in session.edits]
        self._residency.set_aside_now(standing.raw.nbytes)
        session.set_edits(*stop_edits.with_edits(stop.frame, wanted))
        self._residency.accounted(session)
        tell_edited(self._runtime, session)
        return reports.paused(self._runtime, session)
