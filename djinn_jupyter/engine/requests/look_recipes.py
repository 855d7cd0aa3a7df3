"""The recipe of a look at a stop: the pass over its line that comes to it, and the edits that were made there."""

from __future__ import annotations

import msgspec

from djinn_jupyter.engine.model.hooks.taps import Tap
from djinn_jupyter.engine.persistence.identity import ModelIdentity
from djinn_jupyter.engine.requests.origin import ANY_SESSION, circumstances
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.stop_edits import StopEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.interventions import ApplyEdit
from djinn_jupyter.wire.looks import LookRecipe
from djinn_jupyter.wire.nouns import ModelDescription


def look_recipe(
    identity: ModelIdentity, model: ModelDescription, session: Session, asked: ask.Lens | ask.MeasureEffect, tap: Tap
) -> LookRecipe | None:
    """Return what makes a look again at the present stop; None where a pass over the line alone would not come to it,
    or where an edit was kept by a version that noted its words alone."""
    stop = session.history.here
    assert stop is not None and stop.frame.tap is not None
    arrived, edits = stop.frame, _asked_for([edit for edit in session.edits if edit.enabled])
    if arrived.committed or arrived.overrides or session.rules_in_force or edits is None:
        return None
    return LookRecipe(
        line=arrived.tokens,
        site=str(stop.frame.tap.site),
        edits=edits,
        asked=msgspec.structs.replace(asked, session=ANY_SESSION),
        made=circumstances(identity, model, session, (), [stop.frame.tap, tap]),
    )


def _asked_for(edits: list[StopEdit]) -> tuple[ApplyEdit, ...] | None:
    """Return the requests that make edits again, None where one of them does not say how."""
    found = [
        ApplyEdit(session=ANY_SESSION, edit=one.edit, site=str(one.site), positions=one.positions)
        for one in edits
        if one.edit is not None
    ]
    return tuple(found) if len(found) == len(edits) else None
