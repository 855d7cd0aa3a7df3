"""The lines that every front end runs, one of each kind of display, and how the reader sees what they leave.

Each line is one input, so that consoles take it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from typing import Final

WIDGET: Final = "application/vnd.jupyter.widget-view+json"


def setup(session: str) -> list[str]:
    """Return the lines that load the demo and open a session of its own."""
    return [
        "import djinn_jupyter as dj",
        "engine = dj.load('demo')",
        f"session = engine.session({session!r}, fresh=True)",
        "point = session.breakpoint(4)",
    ]


CAUGHT: Final = (
    "exec('try:\\n    session.breakpoint(99)\\nexcept dj.DjinnError as error:\\n    caught = error', globals())"
)
PYTHON: Final = {
    "result": "engine.head_scores(['The capital of France is'])",
    "stop": "session.run('The capital of France is')",
    "returned error": "caught",
}
RAISED: Final = {"error of Python": "session.breakpoint(99)"}
MAGICS: Final = {"memory": "%djinn_vram --seconds 2", "error of a magic": "%djinn_break 99"}
MARKS: Final = {
    "result": "previous token",
    "stop": "aused at",
    "returned error": "UnknownSite",
    "memory": "emory of demo",
    "error of Python": "this model has layers 0..7",
    "error of a magic": "this model has layers 0..7",
}


def magics_too(session: str) -> dict[str, str]:
    """Return all lines of a front end that has IPython, by what they show; setup lines by numbers."""
    load = f"%djinn_load demo --session {session}"
    loading = [*setup(session), CAUGHT, "%load_ext djinn_jupyter", load, load]
    return {str(n): line for n, line in enumerate(loading)} | PYTHON | MAGICS | RAISED


def form(kind: str, shown: str) -> str:
    """Return how a reader sees an output, in the words of docs/front_ends.md: from the HTML, or else the text."""
    cards = [one for one in re.split(r'(?=<div class="djinn")', shown) if one.startswith('<div class="djinn"')]
    found = [one for one in cards if MARKS[kind] in unescape(one)]
    if kind == "memory" and found:
        drawn = any("data:image/svg+xml" in one for one in found)
        live = WIDGET in shown or "djinn-memory" in shown
        return ("chart, then figure" if live else "figure") if drawn else "card without a figure"
    if found:
        return "card"
    if MARKS[kind] not in unescape(shown):
        return f"nothing: {shown[-2000:]}"
    return "traceback" if "Traceback" in shown else "text" if not kind.startswith("error") else "one line"


def as_html(data: Mapping[str, str]) -> str:
    """Return the form of an output that a page without Jupyter's widgets takes, and which others there were."""
    return "\n".join([str(data.get("text/html", data.get("text/plain", ""))), *(f"<!-- {one} -->" for one in data)])
