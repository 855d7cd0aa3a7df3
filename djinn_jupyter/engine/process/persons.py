"""A person's part of an engine. Names are each person's own: the session `main` of anna is `anna@main` in the engine,
and no message of hers can name another's, because every name in it is put behind hers. What another shares with her is
the exception: she names `bert@main` so while it is shared. The engine's own user, who has no key, sees all of them
under these full names.

What concerns the whole engine, or a path on its machine, is its own user's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from djinn_jupyter.engine.process.own_folders import Folders, without
from djinn_jupyter.engine.requests.sharing import not_shared, require_granted
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.access import Access
from djinn_jupyter.wire.naming import of_person, person_of, respelled, sessions_in
from djinn_jupyter.wire.nouns import EngineStatistics, SessionDescription
from djinn_jupyter.wire.people import PersonDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.replies import (
    Checkpoints,
    CheckpointSaved,
    Described,
    Event,
    Failed,
    Opened,
    People,
    Reply,
    Sessions,
    Statistics,
    Swapped,
    Tree,
)
from djinn_jupyter.wire.requests import Request
from djinn_jupyter.wire.texts import in_quotes

Shares = Callable[[str, str], Access | None]
NOT_KEPT: Final = (
    "What this did is in memory alone, because the journal cannot be written just now. It is tried again; an engine "
    "that dies before that loses it."
)
"""In place of the engine's own sentence, which names sessions of others."""


def as_own_user(request: Request, answer: Callable[[Reply], None]) -> tuple[Request, Callable[[Reply], None]]:
    """Return a request of the engine's own user, and the callback of its answer. That user enters a person's session as
    a guest does: it goes on being held by its person's kernel. Raises UsageError where a session or a checkpoint would
    be made under a name that may be a person's, here or in an engine that listens later."""
    made = request.made or request.saved
    if made is None or person_of(made) is None:
        return request, answer
    refusal = UsageError(
        f"{in_quotes(made)} would be the name of a person's in an engine that listens, which others reach by their "
        "keys: choose a name without @."
    )
    if not isinstance(request, ask.Open) or request.fresh:
        raise refusal
    return ask.Describe(session=made), lambda reply: answer(_as_opened(reply, refusal))


def _as_opened(reply: Reply, none_there: UsageError) -> Reply:
    """Return the answer to an Open that was asked as a Describe."""
    match reply:
        case Described(session=session):
            return Opened(session=session, created=False)
        case Failed(code="UnknownSession"):
            return Failed.of(none_there)
    return reply


def no_shares(session: str, person: str) -> None:
    """Return the access to sessions of others where none is shared."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person who has proved by a key who they are. `shares` has the access of a person to another's session, as it is
    now; `folders` are the engine's own, which no reply names."""

    name: str
    shares: Shares = field(default=no_shares, compare=False, repr=False)
    folders: Folders = field(default=(), compare=False, repr=False)

    def owns(self, session: str) -> bool:
        return person_of(session) == self.name

    def may_hear(self, session: str) -> bool:
        return self.owns(session) or self.access(session) is not None

    def access(self, session: str) -> Access | None:
        """Return this person's access to another's session."""
        return self.shares(session, self.name)

    def asks(self, request: Request) -> Request:
        """Return the request with this person's names as the engine has them, and a session that is shared by the name
        by which it is. UsageError for what is the engine's own user's alone, or not granted; UnknownSession for
        another's that is not shared."""
        self._require_allowed(request)
        full = respelled(request, self._in_full)
        others = {field: name for field, name in sessions_in(request).items() if self._is_of_another(name)}
        if isinstance(request, ask.Unlisten):
            return _of_others(full, others)  # also when it is not shared any more
        for name in (*others.values(), request.made or request.saved):
            if name is not None and self._is_of_another(name) and self.access(name) is None:
                raise not_shared(name)
        if others and isinstance(request, ask.Open):
            full = request = _entered(request)
        for name in others.values():
            require_granted(request, name, self.access(name))
        return _of_others(full, others)

    def answered_by(self, answer: Callable[[Reply], None]) -> Callable[[Reply], None]:
        return lambda reply: answer(self.hears(reply))

    def told(self, answer: Callable[[Reply], None], request: Request, asked: Request) -> Callable[[Reply], None]:
        """Return the callback of a request, which has been `asked` under the engine's names."""
        for session in sessions_in(asked).values():
            if not self.owns(session):
                answer = self.told_as_guest(answer, session, request)
        return answer

    def told_as_guest(self, answer: Callable[[Reply], None], session: str, asked: Request) -> Callable[[Reply], None]:
        """Return the callback of a request for another's session: it refuses where that is not shared any more."""

        def told(reply: Reply) -> None:
            if self.access(session) is None and not isinstance(asked, ask.Unlisten):
                error = not_shared(session)
                reply = Failed.of(error)
            elif isinstance(asked, ask.Open) and isinstance(reply, Described):
                reply = Opened(session=reply.session, created=False)
            answer(reply)

        return told

    def hears(self, reply: Reply) -> Reply:
        """Return the reply with these names as the person has them, and of others' no more than that a session exists
        and how large it is."""
        if reply.not_kept is not None:
            reply = msgspec.structs.replace(reply, not_kept=NOT_KEPT)
        match reply:
            case Failed():
                told = without(self.folders, reply.message.replace(of_person(self.name, ""), ""))
                return msgspec.structs.replace(reply, message=told)
            case CheckpointSaved():
                reply = msgspec.structs.replace(reply, path="")
            case Sessions(sessions=sessions, first=first):
                seen = tuple(self._seen(one, at) for at, one in enumerate(sessions, first + 1))
                reply = msgspec.structs.replace(reply, sessions=seen)
            case Opened(session=session) | Described(session=session) | Swapped(session=session):
                reply = msgspec.structs.replace(reply, session=self._used(session))
            case Tree(branches=branches):
                reply = Tree(branches=tuple(self._branch(one) for one in branches if self.may_hear(one.session)))
            case Checkpoints(checkpoints=checkpoints):
                own = tuple(one for one in checkpoints if self.owns(one.name))
                reply = msgspec.structs.replace(reply, checkpoints=own)
            case Statistics(statistics=statistics):
                reply = Statistics(statistics=_without_texts(statistics))
            case People(people=people):
                reply = People(people=tuple(self._met(one) for one in people))
        return respelled(reply, self._in_short)

    def event(self, event: Event) -> Event:
        """Return an event of a session that this person may hear, under the person's name for it."""
        return respelled(event, self._in_short)

    def _require_allowed(self, request: Request) -> None:
        if request.reserved is not None:
            raise UsageError(request.reserved)
        if isinstance(request, ask.SaveCheckpoint | ask.RestoreCheckpoint | ask.DropCheckpoint) and "/" in request.name:
            raise UsageError("A path on the engine's machine is for its user alone: give the checkpoint's name.")

    def _is_of_another(self, name: str) -> bool:
        return person_of(name) not in (None, self.name)

    def _in_full(self, name: str) -> str:
        """Return a name of this person's as the engine has it; it may be given so too, as lists show it."""
        return of_person(self.name, name.removeprefix(of_person(self.name, "")))

    def _in_short(self, name: str) -> str:
        """Return a name as the person has it; of others' names that are not shared, as their notebooks', the person
        alone."""
        person = person_of(name)
        if person is None or person == self.name or self.access(name) is not None:
            return name.removeprefix(of_person(self.name, ""))
        return person

    def _seen(self, session: SessionDescription, number: int) -> SessionDescription:
        return self._used(session) if self.may_hear(session.name) else _sized(session, number)

    def _met(self, person: PersonDescription) -> PersonDescription:
        """Return a person as this one is told of them: of others, how much memory they have."""
        return person if person.person == self.name else PersonDescription(memory=person.memory)

    def _used(self, session: SessionDescription) -> SessionDescription:
        """Return a session that this person may use; of another's it is not told with whom else it is shared."""
        if self.owns(session.name):
            return session
        own = tuple(one for one in session.shares if one.person == self.name)
        return msgspec.structs.replace(session, shares=own)

    def _branch(self, branch: Branch) -> Branch:
        """Return the branch without a parent that is not this person's to name."""
        parent = branch.forked_from
        known = parent is None or self.may_hear(parent.session)
        return branch if known else msgspec.structs.replace(branch, forked_from=None)


def named_by(request: Request) -> str | None:
    """Return the session that a request is about."""
    return next(iter(sessions_in(request).values()), None)


def _entered(request: ask.Open) -> ask.Describe:
    """Return the request of a guest who opens a session: it goes on being held by its own person's kernel. UsageError
    where it would be emptied."""
    if request.fresh:
        raise UsageError(f"Session {in_quotes(request.session)} is shared with you: only its owner makes it fresh.")
    return ask.Describe(session=request.session)


def _of_others(request: Request, sessions: Mapping[str, str]) -> Request:
    """Return the request about sessions of others, all other names in it being the person's own."""
    changes: dict[str, object] = {**sessions}
    if isinstance(request, ask.StopRequest) and request.stop is not None and "session" in sessions:
        changes["stop"] = msgspec.structs.replace(request.stop, session=sessions["session"])
    return msgspec.structs.replace(request, **changes)


def _sized(session: SessionDescription, number: int) -> SessionDescription:
    """Return another's session: its owner, its size and where it is. Its name is its owner's alone."""
    return SessionDescription(
        name=f"session {number}, of {session.owner}",
        owner=session.owner,
        holder=None,
        state=session.state,
        tokens=session.tokens,
        committed=0,
        stopped_at=None,
        step=None,
        breakpoints=(),
        rules=(),
        watches=(),
        stops_kept=0,
        stop=None,
        pages=session.pages,
        device_bytes=session.device_bytes,
        idle_seconds=session.idle_seconds,
        residency=session.residency,
        host_bytes=session.host_bytes,
        disk_bytes=session.disk_bytes,
    )


def _without_texts(statistics: EngineStatistics) -> EngineStatistics:
    """Return the counts without the sentences, which may name what belongs to others."""
    trouble = "sessions cannot be kept just now" if statistics.journal_trouble else None
    return msgspec.structs.replace(statistics, journal_trouble=trouble, last_fault=None)
