"""Quotas: a person's limits at an engine, their spelling, and the files with a person's own.

quotas/NAME      beside the folder of admitted keys: of a person, what differs from the common quota
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from djinn_jupyter.errors import MalformedMessage, UsageError
from djinn_jupyter.units import parse_bytes, read_duration, spell_duration, spell_option
from djinn_jupyter.wire.base import Frozen, ReplyBase
from djinn_jupyter.wire.keys import KeyFolder, settled_stamp, write_key_file
from djinn_jupyter.wire.nouns import OwnerBudget, PersonMemory
from djinn_jupyter.wire.own import read_own
from djinn_jupyter.wire.request_base import RequestBase

log = logging.getLogger(__name__)

KINDS: Final = ("device", "host", "disk", "sessions", "running")
EXAMPLE: Final = "device=8GiB,sessions=20,running=2h"
_COUNT: Final = re.compile(r"\d{1,9}")
Told = Mapping[str, int | None]  # the fields of a quota that are given; None: no limit


class Quota(OwnerBudget, frozen=True):
    """A person's limits; None is no limit. `running` is in seconds of the last day."""

    def but(self, told: Told) -> Quota:
        """Return this quota with the given limits of another."""
        return msgspec.structs.replace(self, **told)

    def __str__(self) -> str:
        return ",".join(f"{kind}={spelled(kind, most)}" for kind in KINDS if (most := getattr(self, kind)) is not None)


NO_QUOTA: Final = Quota()


def read_quota(text: str) -> dict[str, int | None]:
    """Return the limits in a text such as `device=8GiB,sessions=20`. UsageError for an invalid text."""
    told: dict[str, int | None] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        kind, _, most = part.partition("=")
        if kind not in KINDS or not most:
            raise UsageError(
                f"{part[:40]!r} is no quota: write one of {', '.join(KINDS)}, = and the most, as {EXAMPLE}."
            )
        if kind in told:
            raise UsageError(f"{kind} is told twice; give one quota of it.")
        told[kind] = None if most == "none" else _most(kind, most)
    if not told:
        raise UsageError(f"A quota tells the most of something: write for example {EXAMPLE}.")
    return told


def _most(kind: str, text: str) -> int:
    if kind == "running":
        return int(read_duration(text))
    if kind != "sessions":
        return parse_bytes(text) or 0
    if not _COUNT.fullmatch(text):
        raise UsageError(f"{text[:40]!r} is no number of sessions; write for example sessions=20, or sessions=none.")
    return int(text)


def spelled(kind: str, most: int) -> str:
    """Spell a limit as in a quota."""
    match kind:
        case "sessions":
            return str(most)
        case "running":
            return spell_duration(most).replace(" ", "")
    return spell_option(most)


def spell_told(told: Told) -> str:
    """Spell given limits in the form of an option."""
    return ",".join(f"{kind}={'none' if most is None else spelled(kind, most)}" for kind, most in told.items())


def _exact(told: Told) -> str:
    """Spell given limits to the byte and the second."""
    return ",".join(f"{kind}={_number(kind, most)}" for kind, most in told.items())


def _number(kind: str, most: int | None) -> str:
    return "none" if most is None else f"{most}s" if kind == "running" else str(most)


class QuotaFolder:
    """The quotas of single persons, where they differ from the common one."""

    def __init__(self, keys: KeyFolder) -> None:
        self.path = keys.folder("quotas")

    def write(self, person: str, told: Told) -> None:
        """Replace a person's own quota."""
        write_key_file(self.path / person, _exact(told).encode(), anew=True)

    def forget(self, person: str) -> None:
        """Reset a person to the common quota."""
        (self.path / person).unlink(missing_ok=True)

    def read(self) -> dict[str, Told]:
        """Return the limits given to each person. An unreadable or untrusted file gives none, which is logged."""
        found: dict[str, Told] = {}
        for name in sorted(path.name for path in self.path.glob("*") if not path.name.endswith(".part")):
            try:
                found[name] = read_quota(read_own(self.path / name).decode())
            except FileNotFoundError:
                continue
            except (UsageError, ValueError) as error:
                log.warning("%s has the common quota: %s", name, error)
        return found


class PersonQuotas:
    """The quota of each person, read from the folder at each use, over the common one."""

    def __init__(self, folder: QuotaFolder, common: Quota = NO_QUOTA) -> None:
        self._folder, self._common = folder, common
        self._lock = threading.Lock()
        self._stamp: int | None = None
        self._told: Mapping[str, Told] = {}

    def __call__(self, person: str) -> Quota:
        return self._common.but(self._look().get(person, {}))

    def _look(self) -> Mapping[str, Told]:
        with self._lock:
            stamp = settled_stamp(self._folder.path)
            if stamp is None or stamp != self._stamp:
                self._told, self._stamp = self._folder.read(), stamp
            return self._told


class PersonDescription(Frozen, frozen=True):
    """One person at an engine. `running_seconds` are the engine's working time for them within the last day;
    `checkpoint_bytes` are files on disk, beside `memory`. `notebooks` are the present clients; `seen_seconds` is the
    time since the last message, None where none came since the engine's start. A person sees only the memory of others:
    all else is None."""

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
    """Read the persons at the engine, and the memory of each."""


# The exchange between a user's server and Djinn's service of its JupyterHub: a token of the hub and a public key for
# an admission and the addresses of engines. JSON, one POST.

SERVICE: Final = "DJINN_HUB"  # the variable of a user's server with the address of the service
TOKEN: Final = "JUPYTERHUB_API_TOKEN"
MOST_BYTES: Final = 2**16

Exchanged = TypeVar("Exchanged", bound=msgspec.Struct)


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The token is in the header `Authorization: token ...`, as in the hub's own interface."""

    public: str  # spelled as in `djinn key list`


class OfferedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that admits the key."""

    model: str
    address: str  # HOST:PORT


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """The admission of a key. It ends `seconds` after the answer; the same exchange renews it."""

    person: str
    seconds: float
    engines_key: str  # the public key by which the engines prove their identity
    engines: tuple[OfferedEngine, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with another status than 200; `code` is the class of `djinn_jupyter.errors` to raise."""

    code: str
    message: str


def decode(text: bytes, kind: type[Exchanged]) -> Exchanged:
    """Return a message of the exchange; MalformedMessage for anything else."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"Not a message between a server of a hub and Djinn's service: {error}.") from None
