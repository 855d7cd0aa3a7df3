"""The influences on a stop (edits, rules, overrides, earlier changes) as sections of a card."""

from __future__ import annotations

from djinn_jupyter.api.influences import Edits, sections
from djinn_jupyter.api.influences import influence_lines as influence_lines
from djinn_jupyter.widgets.html import Html, div, part, span
from djinn_jupyter.wire.readings import Influences


def influence_parts(told: Influences, edits: Edits = (), but: Edits = ()) -> list[Html]:
    """Return one section for each kind of influence; none where the model is unmodified. `edits` are the stop's own
    edits to list, `but` those that the card lists elsewhere."""
    found = sections(told, edits, but)
    return [part(*(_note(*line) for line in lines), name=name) for name, lines in found.items()]


def _note(line: str, size: str) -> Html:
    return div("dj-note", line, " ", span("dj-soft", f"({size})") if size else None)
