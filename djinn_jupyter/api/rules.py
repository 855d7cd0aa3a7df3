"""Steering rules on the client's side: the request for a rule, and the handle of an active one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from djinn_jupyter.api.copies import ReadsSession
from djinn_jupyter.api.patches import Patch, PatchedSession, Positions, spell_standing, taken
from djinn_jupyter.api.tables import Listing, Tabular
from djinn_jupyter.errors import InvalidEdit
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Edit
from djinn_jupyter.wire.nouns import PassesMeant, RuleDescription
from djinn_jupyter.wire.readings import limits_of


class SteeredSession(Protocol):
    """The session of a rule, as its rules use it."""

    def enable_rule(self, number: int, enabled: bool = ...) -> SteeringRule: ...

    def unsteer(self, number: int | None = ...) -> int: ...


class SteeringRule(ReadsSession):
    """A steering rule. `reply` is the rule with its counts as last received; `session.rules()` reads it again."""

    def __init__(self, session: SteeredSession, reply: RuleDescription) -> None:
        self.session, self.reply = session, reply
        self.number, self.site, self.what = reply.number, reply.site, reply.what
        self.edit, self.positions, self.onward = reply.edit, reply.positions, reply.onward
        self.on_passes, self.when, self.note = reply.on, reply.when, reply.note

    @property
    def limits(self) -> tuple[str, ...]:
        """The rule's positions, passes and condition in words; empty for an unlimited rule."""
        return limits_of(self.reply)

    @property
    def enabled(self) -> bool:
        """False while the rule is off."""
        return self.reply.enabled

    @property
    def trouble(self) -> str | None:
        """The reason why a pass of this run could not apply the rule."""
        return self.reply.trouble

    def off(self) -> None:
        """Turn the rule off: no later pass applies it until `on`."""
        self.reply = self.session.enable_rule(self.number, False).reply

    def on(self) -> None:
        """Turn the rule on again."""
        self.reply = self.session.enable_rule(self.number, True).reply

    def end(self) -> None:
        """Remove the rule. UnknownRule where it no longer exists."""
        self.session.unsteer(self.number)

    def __repr__(self) -> str:
        return f"Rule {self.number}{'' if self.enabled else ' (off)'}: {self.what}"


class SteeringRules(tuple[SteeringRule, ...], Tabular):
    """Rules in the order in which they apply: a tuple, and a table."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the rules as lists by column; no column where there is no rule."""
        return Listing(rule.reply for rule in self).columns()

    def told(self) -> dict[str, list[Any]]:
        """Return the rules in words."""
        fields = ("number", "what", "enabled")
        return {name: [getattr(rule, name) for rule in self] for name in fields} if self else {}


def steering(
    session: PatchedSession,
    site: str,
    edit: Edit | Patch,
    positions: Positions,
    named: Callable[[str], list[int]],
    *,
    when: str | None,
    on: PassesMeant | None,
) -> ask.Steer:
    """Return the request for a rule. A patch is read from its session now, because a rule outlives the source's stop.
    `named` finds a token's positions by its text."""
    chosen, onward = spell_standing(positions, named)
    words = None
    if isinstance(edit, Patch):
        if onward is not None:
            raise InvalidEdit("A rule that patches needs both ends of its positions: write '2:5'.")
        edit, chosen, words = taken(edit, session, site, chosen)
    return ask.Steer(
        session=session.name, site=site, edit=edit, positions=chosen, onward=onward, on=on, when=when, words=words
    )
