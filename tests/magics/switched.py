"""The engine double's answers to requests that turn rules and edits off and on, and its tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from djinn_jupyter.errors import UnknownRule
from djinn_jupyter.wire import nouns, replies, requests
from djinn_jupyter.wire.base import SharedWith
from djinn_jupyter.wire.edits import name_of
from djinn_jupyter.wire.readings import EditAtStop, limits_of
from tests.widgets import samples, trees


class Switched:
    """Answers of an engine with one `rules` entry and one edit a stop."""

    sessions: dict[str, nouns.SessionDescription]
    stops: dict[str, replies.Paused | None]
    _site: Callable[[str], str]

    def _share(self, request: requests.Share) -> replies.Reply:
        given = () if request.access is None else (SharedWith(person=request.person, access=request.access),)
        found = msgspec.structs.replace(self.sessions[request.session], shares=given)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _setattention(self, request: requests.SetAttention) -> replies.Reply:
        found = msgspec.structs.replace(self.sessions[request.session], attention=request.attention)
        self.sessions[request.session] = found
        return replies.Described(session=found)

    def _steer(self, request: requests.Steer) -> replies.Reply:
        rule = samples.rule(
            site=self._site(request.site),
            what=", ".join((f"{name_of(request.edit)} at {self._site(request.site)}", *limits_of(request))),
            edit=request.edit,
            positions=request.positions,
            onward=request.onward,
            on=request.on,
            when=request.when,
            note="' a' may be meant otherwise." if request.when and "'a'" in request.when else None,
            passes_met=0,
            passes_changed=0,
            mean_relative_size=None,
        )
        self._rules(request.session, rule)
        return replies.Steered(rule=rule, existed=False)

    def _unsteer(self, request: requests.Unsteer) -> replies.Reply:
        count = len(self.sessions[request.session].rules)
        self._rules(request.session)
        return replies.Cleared(count=count)

    def _rules(self, session: str, *rules: nouns.RuleDescription) -> None:
        self.sessions[session] = msgspec.structs.replace(self.sessions[session], rules=rules)

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
