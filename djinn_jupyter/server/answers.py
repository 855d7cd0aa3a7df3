"""The requests that a browser may send to an engine, each with its reply; the sidebar's types follow this map too."""

from __future__ import annotations

from typing import Any, Final

from djinn_jupyter.server.messages import Accepted
from djinn_jupyter.wire.requests import KINDS, Request

ANSWERS: Final[dict[type[Request], Any]] = {
    kind: Accepted if kind.terms.browser == "moves" else kind.answered_by for kind in KINDS if kind.terms.browser
}
"""A move is answered when the engine has accepted it; its outcome comes later."""
