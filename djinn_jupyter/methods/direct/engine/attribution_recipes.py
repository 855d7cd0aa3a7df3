"""The recipe of a direct logit attribution: the passes over its line that come to its stop, and what was asked."""

from __future__ import annotations

from djinn_jupyter.engine.requests.look_recipes import way_to_stop
from djinn_jupyter.engine.requests.methods import MethodParts
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.methods.direct.request import Attribute, AttributionRecipe


def attribution_recipe(
    parts: MethodParts, session: Session, asked: Attribute, tokens: tuple[int, ...], position: int
) -> tuple[AttributionRecipe | None, str]:
    """Return what tells the parts again at the present stop, of these `tokens`; None, with the reason, where the tokens
    of the line alone do not come to it."""
    way = way_to_stop(session)
    if way.unmade:
        return None, way.unmade
    recipe = AttributionRecipe(
        line=way.line,
        layer=way.boundary,
        tokens=tokens,
        heads=asked.heads,
        neurons=asked.neurons,
        position=position,
        ahead=asked.ahead,
        made=parts.circumstances(session, taps=way.taps),
        passes=way.passes,
    )
    return recipe, ""
