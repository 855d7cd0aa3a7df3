"""The engine double's answers to requests that turn rules and edits off and on, and its tree."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_jupyter.errors import UnknownRule
from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.readings import EditAtStop
from tests.widgets import trees


class Switched:
    """Answers of an engine with one `rules` entry and one edit a stop."""

    sessions: dict[str, nouns.SessionDescription]
    stops: dict[str, replies.Paused | None]

    def _enablerule(self, request: requests.EnableRule) -> replies.Reply:
        told = self.sessions[request.session]
        rules = tuple(msgspec.structs.replace(r, enabled=request.enabled) for r in told.rules)
        if request.number not in [rule.number for rule in rules]:
            raise UnknownRule(f"There is no steering rule {request.number}.")
        self.sessions[request.session] = msgspec.structs.replace(told, rules=rules)
        return replies.Steered(rule=rules[0], existed=True)

    def _enableedit(self, request: requests.EnableEdit) -> replies.Reply:
        stop = self.stops[request.session]
        assert stop is not None
        switched = EditAtStop(number=1, site=stop.site, what="an edit", relative_size=0.1, enabled=request.enabled)
        influences = msgspec.structs.replace(stop.influences, edits=(switched,))
        edits = ("an edit",) if request.enabled else ()
        self.stops[request.session] = msgspec.structs.replace(stop, edits=edits, influences=influences)
        return self.stops[request.session]  # type: ignore[return-value]

    def _readtree(self, _: Any) -> replies.Reply:
        return replies.Tree(branches=trees.branches())
