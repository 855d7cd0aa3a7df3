"""The base of everything that crosses the wire: immutable, named fields only, unknown fields refused.

A field whose type is marked `PERSONAL` holds names that belong to a person, alone or in a tuple; numbers beside them
are left alone. One that is marked `SHARED` besides names a session, which may be another's where that is shared.
"""

from __future__ import annotations

import copyreg
import functools
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar, dataclass_transform

import msgspec
from msgspec import UNSET, Meta, UnsetType

from djinn_jupyter.errors import DjinnError

PERSONAL: Final = "a name that a person gave"
SHARED: Final = "a session's, also of another who shares it"
OwnName = Annotated[str, msgspec.Meta(max_length=1024), PERSONAL]
Message = TypeVar("Message", bound=msgspec.Struct)
MOST_CHARACTERS: Final = 64  # of a person's name
PERSON: Final = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_CHARACTERS - 1}}}"
OwnerName = Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CHARACTERS, pattern=rf"^{PERSON}\Z")]
_OF_A_PERSON: Final = re.compile(rf"({PERSON})@.+", re.DOTALL)
Spell = Callable[[str], str]


def _unset() -> UnsetType:
    return UNSET


# Otherwise pickle looks for a field without a value in every module of the process, and transformers has some that
# raise where a library for images is missing.
copyreg.pickle(UnsetType, lambda unset: (_unset, ()))


def of_person(person: str, name: str) -> str:
    """Return the engine's name for what a person calls `name`."""
    return f"{person}@{name}"


def person_of(name: str) -> str | None:
    """Return the person whose name prefixes this one; None where there is none."""
    found = _OF_A_PERSON.fullmatch(name)
    return found[1] if found else None


def known_to_the_same(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that a person who may say `name` may receive: all, or the same person's."""
    person = person_of(name)
    return [one for one in names if person is None or person_of(one) == person]


class Owned(Protocol):
    """A session, or the description of one: its holder, None when detached, and the notebook that it belongs to."""

    @property
    def holder(self) -> str | None: ...
    @property
    def notebook(self) -> str | None: ...


def is_anothers(session: Owned, holder: str, notebook: str | None) -> bool:
    """Return whether it belongs to another than the kernel or process `holder`, which speaks for that notebook."""
    if session.notebook is not None:
        return session.notebook != notebook
    return session.holder not in (None, holder)


def respelled(message: Message, spell: Spell) -> Message:
    """Return the message with each name replaced by `spell(name)`."""
    changes = {}
    for field, is_name in _places(type(message)):
        before = getattr(message, field)
        after = _respelled(before, spell, is_name)
        if after is not before:
            changes[field] = after
    return msgspec.structs.replace(message, **changes) if changes else message


def sessions_in(message: msgspec.Struct) -> dict[str, str]:
    """Return the sessions of a message, by field, that may be another person's shared ones."""
    named = {field: getattr(message, field) for field in _session_fields(type(message))}
    return {field: name for field, name in named.items() if name is not None}


@functools.cache
def _session_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(field for field, hint in hints.items() if any(part is SHARED for part in _parts(hint)))


def _respelled(value: Any, spell: Spell, is_name: bool) -> Any:
    match value:
        case str() if is_name:
            return spell(value) if value else value  # empty: of all sessions
        case msgspec.Struct():
            return respelled(value, spell)
        case tuple() if not _is_line(value):
            after = tuple(one if _is_line(one) else _respelled(one, spell, is_name) for one in value)
            return value if all(map(operator.is_, after, value)) else after
    return value


def _is_line(value: Any) -> bool:
    """Return whether a value is a list of token ids, which contains no names."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], int)


@functools.cache
def _places(kind: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a struct that hold names (True), or structs with names."""
    return tuple(_find_places(kind, ()))


def _find_places(kind: type[msgspec.Struct], above: tuple[type, ...]) -> Iterator[tuple[str, bool]]:
    for field, hint in typing.get_type_hints(kind, include_extras=True).items():
        parts = list(_parts(hint))
        inside = (one for one in parts if isinstance(one, type) and issubclass(one, msgspec.Struct))
        if any(one is PERSONAL for one in parts):
            yield field, True
        elif any(one not in above and any(_find_places(one, (*above, kind))) for one in inside):
            yield field, False


def _parts(hint: Any) -> Iterator[Any]:
    """Yield a type, the types inside it, and their marks."""
    yield hint
    yield from getattr(hint, "__metadata__", ())
    for one in typing.get_args(hint):
        yield from _parts(one)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value. Tells type checkers so too, because msgspec's options do not carry to subclasses."""


# Marks of lists whose length the model limits. An engine checks each list against its limit before it reads an entry
# (`engine/loop/intake.py`, and the handlers); a list without such a mark has at most FEW entries.

FEW: Final = 65_536
MOST_TOKENS: Final = 2**20
BOUNDED_BY: Final = "bounded by"


def bounded_by(noun: str, most: int = MOST_TOKENS) -> Meta:
    """Return the mark of a list with at most one entry per `noun` of a model or a token sequence."""
    return Meta(max_length=most, extra={BOUNDED_BY: noun})


Positions = Annotated[tuple[int, ...], Meta(min_length=1), bounded_by("positions")]
Tokens = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], bounded_by("tokens")]
SomeTokens = Annotated[Tokens, Meta(min_length=1)]


class EventBase(Frozen, tag_field="event"):
    """Something that happened to a session. Sent to all clients that listen to it."""

    session: OwnName


class ReplyBase(Frozen, kw_only=True, tag_field="reply"):
    """The one answer to a request. `not_kept`: one sentence where the request's effect is in memory only, because its
    session cannot be written to the journal now; if the engine dies, the effect is lost."""

    not_kept: str | None = None

    def is_whole_for(self, request: Any) -> bool:
        """Return whether it has all parts of the request: interrupted work keeps its finished parts."""
        return True


class Cleared(ReplyBase):
    count: int


class Failed(ReplyBase):
    """`code` is the class of `djinn_jupyter.errors` to raise; `message` says what is wrong and what to do."""

    code: str
    message: str

    @classmethod
    def of(cls, error: DjinnError) -> Failed:
        """Return the reply that raises this error again at the caller."""
        return cls(code=error.code, message=str(error))


FewWords = Annotated[str, Meta(max_length=64)]


class Progress(Frozen, frozen=True):
    """`done` of `total` of what is `counted`, such as cells or layers; `total` is None where the engine may still get
    more work. `doing` is a verb's form: sweeping."""

    doing: FewWords
    done: int
    total: int | None
    counted: FewWords = "prompts"

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.doing}, {self.done:,} {self.counted} so far"
        return f"{self.doing}, {self.done:,} of {self.total:,} {self.counted}"


class WorkProgressed(EventBase):
    """Progress of the work in a session, sent a few times a second."""

    progress: Progress


Tier = Literal["host", "disk"]


class Transfer(Frozen, frozen=True):
    """One move of a session's bytes between the device and a tier: the bytes moved and the duration."""

    direction: Literal["out", "in"]
    tier: Tier
    bytes_moved: int
    seconds: float  # from beginning to end, including waits for memory, for other moves and for computing
    cause: Literal["asked", "pressure", "idleness", "prefetch", "needed", "write_through"]
    copy_seconds: float | None = None  # the mover's part, in which the bytes were copied


Access = Literal["read", "write"]


class SharedWith(Frozen, frozen=True):
    """A person with whom a session is shared: to `read`, or also to `write`, which allows everything but closing and
    sharing it."""

    person: str
    access: Access
