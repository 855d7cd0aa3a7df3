"""The requests that a browser may send to an engine, each with its reply; the sidebar's types follow this map too."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.server.messages import Accepted
from djinn_jupyter.wire.kinds import Kinds
from djinn_jupyter.wire.requests import Request


def answers_among(kinds: Kinds) -> dict[type[Request], Any]:
    """Return these, of some kinds. A move is answered when the engine has accepted it; its outcome comes later."""
    return {
        kind: Accepted if kind.terms.browser == "moves" else kind.answered_by
        for kind in kinds.requests
        if kind.terms.browser
    }
