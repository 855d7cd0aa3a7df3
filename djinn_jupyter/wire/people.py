"""The persons at an engine, as its user's list of them has it."""

from __future__ import annotations

from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.holdings import PersonMemory
from djinn_jupyter.wire.quotas import Quota
from djinn_jupyter.wire.reply_base import ReplyBase
from djinn_jupyter.wire.request_base import RequestBase


class PersonDescription(Frozen, frozen=True):
    """One person at an engine. `running_seconds` are those that the engine has worked for them within the last day;
    `checkpoint_bytes` are files on disk, beside `memory`. `notebooks` are the clients that are present; `seen_seconds`
    ago the last message came, None where none came since the engine began. Of others a person is told the memory
    alone: all else is None."""

    memory: PersonMemory
    sessions: int | None = None
    running: int | None = None  # of the sessions
    checkpoint_bytes: int | None = None
    running_seconds: float | None = None
    quota: Quota | None = None
    notebooks: int | None = None
    seen_seconds: float | None = None

    @property
    def person(self) -> str | None:
        """The name under which the person is admitted; None for the engine's own user."""
        return self.memory.person


class People(ReplyBase):
    """The engine's own user first, then the persons by name."""

    people: tuple[PersonDescription, ...]


class ReadPeople(RequestBase[People], resent="anew"):
    """Read who is at the engine, and the memory of each."""
