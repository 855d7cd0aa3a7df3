"""The recipe of a direct logit attribution: the passes over its line that come to its stop, and what was asked."""

from __future__ import annotations

from typing import Final

from djinn_jupyter.engine.requests.look_recipes import fed_tokens, line_before
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.session.feeding import why_not_plain
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.methods.direct.request import Attribute, AttributionRecipe

EDITED_HERE: Final = "the value of its stop is edited"


def attribution_recipe(
    parts: MethodParts, session: Session, asked: Attribute, tokens: tuple[int, ...], position: int
) -> tuple[AttributionRecipe | None, str]:
    """Return what tells the parts again at the present stop, of these `tokens`; None, with the reason, where the tokens
    of the line alone do not come to it."""
    stop = session.history.here
    assert stop is not None
    line, frame = line_before(session, stop), stop.frame
    edited = EDITED_HERE if session.edits_in_force else ""
    if unmade := why_not_plain(frame, session.rules_in_force) or line.unmade or edited:
        return None, unmade
    taps = [tap for one in line.passes for rule in one.rules for tap in rule.taps]
    recipe = AttributionRecipe(
        line=(*line.tokens, *frame.tokens),
        layer=frame.boundary,
        tokens=tokens,
        heads=asked.heads,
        neurons=asked.neurons,
        position=position,
        ahead=asked.ahead,
        made=parts.circumstances(session, taps=taps),
        passes=fed_tokens(line),
    )
    return recipe, ""
