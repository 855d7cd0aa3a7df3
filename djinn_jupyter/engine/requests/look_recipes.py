"""The recipe of a look at a stop: the passes over its line that come to it, and the edits that were made there."""

from __future__ import annotations

import msgspec

from djinn_jupyter.engine.interventions.fed_line import FedLine
from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.requests.origin import ANY_SESSION, asked_for, circumstances
from djinn_jupyter.engine.session.feeding import committed_line, why_not_plain
from djinn_jupyter.engine.session.history import StopRecord
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.stop_edits import StopEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.circumstances import FedTokens
from djinn_jupyter.wire.interventions import ApplyEdit
from djinn_jupyter.wire.looks import LookRecipe
from djinn_jupyter.wire.nouns import ModelDescription


def look_recipe(
    identity: ModelIdentity,
    model: ModelDescription,
    session: Session,
    asked: ask.Inspect | ask.Lens | ask.MeasureEffect,
    tap: Tap,
) -> tuple[LookRecipe | None, str]:
    """Return what makes a look again at the present stop; None, with the reason, where its tokens alone do not come to
    it, or where it is not known how it was edited."""
    stop = session.history.here
    assert stop is not None and stop.frame.tap is not None
    line = line_before(session, stop)
    edits = _asked_for([edit for edit in session.edits if edit.enabled])
    unmade = why_not_plain(stop.frame, session.rules_in_force) or line.unmade
    if unmade:
        return None, unmade
    taps = [stop.frame.tap, tap, *(tap for one in line.passes for rule in one.rules for tap in rule.taps)]
    recipe = LookRecipe(
        line=(*line.tokens, *stop.frame.tokens),
        site=str(stop.frame.tap.site),
        edits=edits,
        asked=msgspec.structs.replace(asked, session=ANY_SESSION),
        made=circumstances(identity, model, session, (), taps),
        passes=fed_tokens(line),
    )
    return recipe, ""


def fed_tokens(line: FedLine) -> tuple[FedTokens, ...]:
    """Return the passes of a line as they are asked for again."""
    return tuple(
        FedTokens(start=one.start, end=one.end, each=one.each, rules=tuple(map(asked_for, one.rules)))
        for one in line.passes
    )


def line_before(session: Session, stop: StopRecord) -> FedLine:
    """Return the line before the pass that stands at a stop."""
    return committed_line(stop.tokens, session.pass_log, session.exactness, stop.frame.committed)


def _asked_for(edits: list[StopEdit]) -> tuple[ApplyEdit, ...]:
    """Return the requests that make edits again."""
    return tuple(
        ApplyEdit(session=ANY_SESSION, edit=one.edit, site=str(one.site), positions=one.positions) for one in edits
    )
