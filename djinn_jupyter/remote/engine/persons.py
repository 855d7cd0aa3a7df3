"""A person's part of an engine. Names are each person's own: the session `main` of anna is `anna@main` in the engine,
and no message of hers can name another's, because every name in it is put behind hers. What another shares with her is
the exception: she names `bert@main` so while it is shared. The engine's own user, who has no key, sees all of them
under these full names. What concerns the whole engine, or a path on its machine, is its own user's alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import msgspec
from jupyter_core.paths import jupyter_data_dir

from djinn_jupyter.engine.process.seam import Admission, Alone, Answer, Heard, Owner, as_own_user
from djinn_jupyter.engine.system.config import EngineConfig
from djinn_jupyter.errors import UnknownSession, UsageError
from djinn_jupyter.remote.engine.access_keys import Door
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import Access, EventBase, of_person, person_of, respelled, sessions_in
from djinn_jupyter.wire.nouns import EngineStatistics, PersonMemory, SessionDescription
from djinn_jupyter.wire.people import PersonDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.registry import FOLDER
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

UNTOLD: Final = "…"
Folders = tuple[str, ...]


def own_folders(config: EngineConfig) -> Folders:
    """Return the folders that an engine's sentences may name, the longest first."""
    return tuple(sorted({str(one) for one in _folders(config) if one.is_absolute()}, key=len, reverse=True))


def without(folders: Folders, message: str) -> str:
    """Return a sentence with its paths relative to these folders."""
    for folder in folders:
        message = message.replace(folder, UNTOLD)
    return message


def _folders(config: EngineConfig) -> Iterator[Path]:
    yield config.data_folder or Path(jupyter_data_dir()) / FOLDER
    yield from (Path(one) for one in (config.shared_journal, config.checkpoints) if one and "://" not in one)


def not_shared(session: str) -> UnknownSession:
    """Return the error for a caller of another's session that is not, or no longer, shared with them."""
    return UnknownSession(f"No session {in_quotes(session)} is shared with you.")


def require_granted(request: ask.Request, session: str, access: Access | None) -> None:
    """Raise UnknownSession where `session` is not shared, UsageError where this access does not allow the request."""
    if access is None:
        raise not_shared(session)
    needed = type(request).terms.shared
    if needed == "read" or needed == access:
        return
    owner = person_of(session)
    if needed == "write":
        raise UsageError(
            f"Session {in_quotes(session)} is shared with you to read: fork it (%djinn_fork) and work on that, or ask "
            f"{owner} to share it with --write."
        )
    raise UsageError(f"Session {in_quotes(session)} is shared with you; this is for {owner} alone, whose it is.")


SharesOf = Callable[[str, str], Access | None]
NOT_KEPT: Final = (
    "What this did is in memory alone, because the journal cannot be written just now. It is tried again; an engine "
    "that dies before that loses it."
)
"""In place of the engine's own sentence, which names sessions of others."""


def no_shares(session: str, person: str) -> None:
    """Return the access to sessions of others where none is shared."""


class Persons:
    """The admission of persons with keys beside the engine's own user. `knows` returns whether a key is, or was,
    admitted under a name; for `shares` and `folders` see `Person`."""

    def __init__(self, shares: SharesOf, *, knows: Callable[[str], bool], folders: Folders = ()) -> None:
        self._shares, self._knows, self._folders = shares, knows, folders

    def asks(self, owner: Owner, request: Request, answer: Answer) -> tuple[Request, Answer]:
        if owner is None:
            asked = as_own_user(request, answer)
        else:
            person = self._person(owner)
            full = person.asks(request)
            asked = full, person.guarded(answer, request, full)
        if isinstance(request, ask.Share) and request.needs_others is not None and not self._knows(request.person):
            raise UsageError(request.needs_others)
        return asked

    def hears(self, owner: Owner, message: Heard) -> Heard | None:
        if owner is None:
            return message
        person = self._person(owner)
        if not isinstance(message, EventBase):
            return cast(Heard, person.hears(message))
        return cast(Heard, person.event(message)) if person.may_hear(message.session) else None

    def _person(self, name: str) -> Person:
        return Person(name, self._shares, self._folders)


def admission_at(door: Door | None, shares: SharesOf, folders: Folders) -> Admission:
    """Return the admission of an engine, with persons where it has a door."""
    return Persons(shares, knows=door.admitted.knows, folders=folders) if door else Alone()


@dataclass(frozen=True, slots=True)
class Person:
    """A person who has proved their identity by a key. `shares` has their present access to another's session;
    `folders` are the engine's own, which no reply names."""

    name: str
    shares: SharesOf = field(default=no_shares, compare=False, repr=False)
    folders: Folders = field(default=(), compare=False, repr=False)

    def owns(self, session: str) -> bool:
        return person_of(session) == self.name

    def may_hear(self, session: str) -> bool:
        return self.owns(session) or self.access(session) is not None

    def access(self, session: str) -> Access | None:
        """Return this person's access to another's session."""
        return self.shares(session, self.name)

    def asks(self, request: Request) -> Request:
        """Return the request with this person's names replaced by the engine's, and a shared session by its full name.
        UsageError for requests reserved to the engine's own user, or not granted; UnknownSession for another's session
        that is not shared."""
        self._require_allowed(request)
        full = respelled(request, self._in_full)
        others = {field: name for field, name in sessions_in(request).items() if self._is_of_another(name)}
        if isinstance(request, ask.Unlisten):
            return _of_others(full, others)  # also when it is no longer shared
        for name in (*others.values(), request.made or request.saved):
            if name is not None and self._is_of_another(name) and self.access(name) is None:
                raise not_shared(name)
        if others and isinstance(request, ask.Open):
            full = request = _entered(request)
        for name in others.values():
            require_granted(request, name, self.access(name))
        return _of_others(full, others)

    def guarded(self, answer: Callable[[Reply], None], request: Request, asked: Request) -> Callable[[Reply], None]:
        """Return the callback of a request, which has been `asked` under the engine's names."""
        for session in sessions_in(asked).values():
            if not self.owns(session):
                answer = self.guarded_for_guest(answer, session, request)
        return answer

    def guarded_for_guest(
        self, answer: Callable[[Reply], None], session: str, asked: Request
    ) -> Callable[[Reply], None]:
        """Return the callback of a request for another's session: it refuses where that is no longer shared."""

        def told(reply: Reply) -> None:
            if self.access(session) is None and not isinstance(asked, ask.Unlisten):
                error = not_shared(session)
                reply = Failed.of(error)
            elif isinstance(asked, ask.Open) and isinstance(reply, Described):
                reply = Opened(session=reply.session, created=False)
            answer(reply)

        return told

    def hears(self, reply: Reply) -> Reply:
        """Return the reply with the person's own names; of others' sessions only their existence and size."""
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
        """Return the engine's form of this person's name; the person may use that form too, as lists show it."""
        return of_person(self.name, name.removeprefix(of_person(self.name, "")))

    def _in_short(self, name: str) -> str:
        """Return the person's form of a name; for others' names that are not shared, such as their notebooks', only the
        person."""
        person = person_of(name)
        if person is None or person == self.name or self.access(name) is not None:
            return name.removeprefix(of_person(self.name, ""))
        return person

    def _seen(self, session: SessionDescription, number: int) -> SessionDescription:
        return self._used(session) if self.may_hear(session.name) else _sized(session, number)

    def _met(self, person: PersonDescription) -> PersonDescription:
        """Return the description of a person for this one: of others, only their memory."""
        return person if person.person == self.name else PersonDescription(memory=person.memory)

    def _used(self, session: SessionDescription) -> SessionDescription:
        """Return a session that this person may use; another's without the other persons that it is shared with."""
        if self.owns(session.name):
            return session
        own = tuple(one for one in session.shares if one.person == self.name)
        return msgspec.structs.replace(session, shares=own)

    def _branch(self, branch: Branch) -> Branch:
        """Return the branch without a parent that this person may not name."""
        parent = branch.forked_from
        known = parent is None or self.may_hear(parent.session)
        return branch if known else msgspec.structs.replace(branch, forked_from=None)


def _entered(request: ask.Open) -> ask.Describe:
    """Return the request of a guest who opens a session, which stays held by its own person's kernel. UsageError where
    it would be emptied."""
    if request.fresh:
        raise UsageError(f"Session {in_quotes(request.session)} is shared with you: only its owner makes it fresh.")
    return ask.Describe(session=request.session)


def _of_others(request: Request, sessions: Mapping[str, str]) -> Request:
    """Return the request about sessions of others, in which all other names are the person's own."""
    changes: dict[str, object] = {**sessions}
    if isinstance(request, ask.StopRequest) and request.stop is not None and "session" in sessions:
        changes["stop"] = msgspec.structs.replace(request.stop, session=sessions["session"])
    return msgspec.structs.replace(request, **changes)


def _sized(session: SessionDescription, number: int) -> SessionDescription:
    """Return another's session: its owner, its size and its place. Only its owner sees its name."""
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
    """Return the counts without the sentences, which may name other persons' things."""
    trouble = "sessions cannot be kept just now" if statistics.journal_trouble else None
    return msgspec.structs.replace(statistics, journal_trouble=trouble, last_fault=None)


def with_presence(
    people: People,
    admitted: Iterable[str],
    heard: Mapping[str | None, float],
    now: float,
    present: Iterable[str | None],
) -> People:
    """Return the list with all who are `admitted`, and the presence of each. `heard` has the time of each one's last
    message, by the same clock as `now`; `present` has the owner of each present client."""
    listed = {one.person: one for one in people.people}
    for name in {*heard, *admitted} - listed.keys():
        listed[name] = _without_sessions(name)
    clients = Counter(present)
    return People(
        people=tuple(
            msgspec.structs.replace(
                one,
                notebooks=clients[one.person],
                seen_seconds=max(0.0, now - heard[one.person]) if one.person in heard else None,
            )
            for one in sorted(listed.values(), key=lambda one: one.person or "")
        )
    )


def _without_sessions(person: str | None) -> PersonDescription:
    none = PersonMemory(person=person, device_bytes=0, host_bytes=0, disk_bytes=0)
    return PersonDescription(memory=none, sessions=0, running=0, checkpoint_bytes=0, running_seconds=0.0)
