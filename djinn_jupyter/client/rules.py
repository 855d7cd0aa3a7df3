"""The client's handle of a steering rule: its description, and turning it off, on or ending it."""

from __future__ import annotations

from typing import Protocol

from djinn_jupyter.wire.nouns import RuleDescription


class SteeredSession(Protocol):
    """The session of a rule, as its rules use it."""

    def enable_rule(self, number: int, enabled: bool = ...) -> SteeringRule: ...

    def unsteer(self, number: int | None = ...) -> int: ...


class SteeringRule:
    """A steering rule. `reply` is the rule with its counts as last received; `session.rules()` reads it anew."""

    def __init__(self, session: SteeredSession, reply: RuleDescription) -> None:
        self.session, self.reply = session, reply
        self.number, self.site, self.what = reply.number, reply.site, reply.what
        self.edit, self.positions = reply.edit, reply.positions

    @property
    def enabled(self) -> bool:
        return self.reply.enabled

    def off(self) -> None:
        """Turn the rule off: no later pass applies it until `on`."""
        self.reply = self.session.enable_rule(self.number, False).reply

    def on(self) -> None:
        self.reply = self.session.enable_rule(self.number, True).reply

    def end(self) -> None:
        self.session.unsteer(self.number)

    def __repr__(self) -> str:
        return f"Rule {self.number}{'' if self.enabled else ' (off)'}: {self.what}"
