"""Keys: a pair identifies a person, and another one the engines of a machine. This module has their files, and the
spelling of a public key.

    own/NAME         this user's own pairs, which identify them to other machines; mode 0600
    server/HOST      the pair of this user's engines on a machine; mode 0600
    allowed/NAME     the public key of a person whom this user's engines admit, and until when, if it has an end
    allowed/NAME+ID  the same, admitted by a service for as long as it renews it; a person may have several of these
    hub/HOST         this user's own pair on that machine, by which a hub's service has it admitted; mode 0600
    trusted/HOST     the public key of the engines of another machine, as in ssh's known_hosts, and the service that
                     told it, if the user did not (wire/keys.py)

Secrets are read from their file when a connection is made. No entry, message, log or repr has them.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.errors import UsageError
from djinn_jupyter.units import read_moment, spell_moment
from djinn_jupyter.wire.base import PERSON
from djinn_jupyter.wire.own import make_own_folder, read_own
from djinn_jupyter.wire.texts import in_quotes

log = logging.getLogger(__name__)

FOLDER: Final = "djinn/keys"  # of the folder of Jupyter's user data
_PART: Final = ".part"
_UNTIL: Final = " until "  # in a file of `allowed`, between a key and its end
FOUND_BY: Final = " found by "  # in a file of `trusted`, between a key and the service that told it
PREFIX: Final = "djinn-"
_PUBLIC: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NAME: Final = re.compile(PERSON)
_ADMITTED: Final = re.compile(rf"{PERSON}(\+[0-9a-f]{{16}})?")
_PLACE: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,254}")
_SETTLED_NANOSECONDS: Final = 1_000_000_000  # the clock of a file system may give several changes one time
AGAIN_SECONDS: Final = 1.0
PublicKey = bytes
LOCAL: Final = b""  # in place of a key, over the private folder: the engine's own user
Draw = Callable[[], tuple[bytes, bytes]]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A CURVE pair, 32 bytes each."""

    public: PublicKey
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The admission of a key."""

    person: str
    until: float | None = None  # seconds since the epoch; None has no end
    lent: bool = False  # by a service, which renews it

    def ended(self, now: float) -> bool:
        return self.until is not None and self.until <= now


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A pair as stored in its file."""

    public: PublicKey
    secret: bytes

    def __repr__(self) -> str:
        return "_Kept(...)"


def spell_public(key: PublicKey) -> str:
    """Return a public key in characters without meaning to a shell."""
    return PREFIX + base64.urlsafe_b64encode(key).decode().rstrip("=")


def read_public(spelled: str) -> PublicKey:
    """Return the 32 bytes of a spelled public key. UsageError for anything else."""
    if not _PUBLIC.fullmatch(spelled):
        raise UsageError(
            f"A public key is {PREFIX} and 43 letters, digits, - and _, as `djinn key new` prints it; "
            f"this has {len(spelled)} characters in all."
        )
    return base64.urlsafe_b64decode(spelled.removeprefix(PREFIX) + "=")


def require_person_name(name: str) -> str:
    """Return the name of a key or a person. UsageError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} names no person: write letters, digits, -, _ and dots, such as anna.")
    return name


class KeyFolder:
    """The folder of keys of this user. Every file is written atomically. None is overwritten, except by the same key
    with another end. Reading creates nothing. `now` is the time in seconds since the epoch."""

    def __init__(self, path: Path, now: Clock = time.time) -> None:
        self._path, self.now = path, now

    def draw_own(self, name: str, draw: Draw) -> KeyPair:
        """Draw an own pair. UsageError where one has that name."""
        return self._draw(self._file("own", require_person_name(name)), draw)

    def own(self, name: str | None = None) -> KeyPair:
        """Return an own pair by its name or its file; None means the only one. UsageError where there is no such
        pair."""
        names = self.names("own")
        if name is None and len(names) != 1:
            what = f"name one of {', '.join(names)}, as key={names[0]!r}" if names else "draw one with `djinn key new`"
            raise UsageError(f"It is not clear by which key the engine should know you: {what}.")
        chosen = names[0] if name is None else name
        path = _named(chosen) if "/" in chosen else self._file("own", require_person_name(chosen))
        return self._read_pair(path, chosen)

    def server(self, host: str, draw: Draw) -> KeyPair:
        """Return the pair of this user's engines on this machine, drawn at its first use."""
        return self._drawn_once(self._file("server", host), draw)

    def for_hub(self, host: str, draw: Draw) -> tuple[KeyPair, Path]:
        """Return the own pair on this machine for a hub's service, drawn at its first use, and its file."""
        path = self._file("hub", host)
        return self._drawn_once(path, draw), path

    def allow(self, public: PublicKey, name: str, until: float | None = None) -> None:
        """Admit a person, until a moment in seconds since the epoch or without an end; a new end replaces the key's
        earlier one. UsageError where the name has another key, or the key another name."""
        path = self._file("allowed", require_person_name(name))
        known = self._not_ended()
        self._require_free(public, name, known)
        if any(one.person == name for key, one in known.items() if key != public or one.lent):
            raise UsageError(f"{name} has another key: `djinn key revoke {name}` first, or take another name.")
        write_key_file(path, _admission(public, until), anew=True)

    def lend(self, public: PublicKey, name: str, until: float) -> None:
        """Admit a person by one more key, until a moment in seconds since the epoch, or extend that key's admission.
        UsageError where `allow` admitted the name, or the key has another name."""
        path = self._lent_file(public, require_person_name(name))
        known = self._not_ended()
        self._require_free(public, name, known)
        if any(one.person == name and not one.lent for one in known.values()):
            raise UsageError(f"{name} is admitted here by a key of their own: the engine's user can revoke it.")
        write_key_file(path, _admission(public, until), anew=True)

    def take_back(self, public: PublicKey, name: str) -> None:
        """End an admission of `lend`."""
        self._lent_file(public, name).unlink(missing_ok=True)

    def clear_ended(self) -> None:
        """Remove the files of ended admissions by `lend`."""
        for public, permit in self.permits().items():
            if permit.lent and permit.ended(self.now()):
                self.take_back(public, permit.person)

    def revoke(self, name: str) -> None:
        """End a person's admission by any key, from now on. UsageError for an unknown name."""
        require_person_name(name)
        files = [self._file("allowed", one) for one in self.names("allowed") if one.partition("+")[0] == name]
        for file in files:
            file.unlink(missing_ok=True)
        if not files:
            raise UsageError(f"No {name} is admitted; `djinn key list` has those who are.")

    def allowed(self) -> dict[PublicKey, str]:
        """Return the persons whom this user's engines admit now, by their public keys."""
        return {public: permit.person for public, permit in self._not_ended().items()}

    def permits(self) -> dict[PublicKey, Permit]:
        """Return all admissions, including ended ones. A file that is unreadable or untrusted admits no one, which is
        logged."""
        return self.read_permits()[0]

    def read_permits(self) -> tuple[dict[PublicKey, Permit], bool]:
        """Return the result of `permits`, and whether all files could be read."""
        found: dict[PublicKey, Permit] = {}
        try:
            names, whole = self.names("allowed"), True
        except OSError as error:
            log.warning("The keys admit no one: %s", error)
            return {}, False
        for name in names:
            try:
                read = self._read_permit(name)
            except (UsageError, ValueError) as error:
                log.warning("The key of %s admits no one: %s", name, error)
                whole = False
                continue
            found |= {key: one for key, one in read.items() if key not in found or _end(one) > _end(found[key])}
        return found, whole

    def trust(self, place: str, public: PublicKey) -> None:
        """Record the key of the engines at `HOST` or `HOST:PORT`. UsageError where another is trusted there."""
        if not _PLACE.fullmatch(place):
            raise UsageError(f"{place!r} is no host: write gpu-box, or gpu-box:5556 where several users have engines.")
        known, found = self.trusted(place), self.found_by(place)
        if known is not None and known != public and found is None:
            raise UsageError(
                f"Another key is trusted for {place}, {spell_public(known)}: if its user confirms the new one, delete "
                f"{self._path / 'trusted' / place} and trust again."
            )
        if known is None or found is not None:
            write_key_file(self._file("trusted", place), spell_public(public).encode(), anew=known is not None)

    def trusted(self, *places: str) -> PublicKey | None:
        """Return the key that is trusted for the first place that has one; None without one."""
        found = (self._read("trusted", place) for place in places)
        return next((public for public in found if public is not None), None)

    def found_by(self, place: str) -> str | None:
        """Return the service that reported the trusted key of a place; None where the user trusted it, or there is
        none."""
        try:
            return read_own(self._file("trusted", place)).decode().partition(FOUND_BY)[2] or None
        except FileNotFoundError:
            return None

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names of the keys of one folder, sorted."""
        found: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            found = os.listdir(self._path / kind)
        spelled = {"trusted": _PLACE, "allowed": _ADMITTED}.get(kind, _NAME)
        return tuple(sorted(name for name in found if spelled.fullmatch(name) and not name.endswith(_PART)))

    def folder(self, kind: str) -> Path:
        """Return the folder of one kind, which may not exist yet."""
        return self._path / kind

    def admitted(self) -> Admitted:
        """Return the persons admitted, checked again at each use."""
        return Admitted(self, self._path / "allowed")

    def _file(self, kind: str, name: str) -> Path:
        return self._path / kind / name

    def _draw(self, path: Path, draw: Draw) -> KeyPair:
        public, secret = draw()
        write_key_file(path, msgspec.json.encode(_Kept(public=public, secret=secret)))
        return KeyPair(public=public, secret=secret)

    def _drawn_once(self, path: Path, draw: Draw) -> KeyPair:
        if not path.exists():
            try:
                return self._draw(path, draw)
            except UsageError:
                if not path.exists():  # another process has just drawn it
                    raise
        return self._read_pair(path, path.name)

    def _not_ended(self) -> dict[PublicKey, Permit]:
        return {public: permit for public, permit in self.permits().items() if not permit.ended(self.now())}

    def _lent_file(self, public: PublicKey, name: str) -> Path:
        return self._file("allowed", f"{name}+{hashlib.sha256(public).hexdigest()[:16]}")

    def _require_free(self, public: PublicKey, name: str, known: Mapping[PublicKey, Permit]) -> None:
        other = known[public].person if public in known else name
        if other != name:
            raise UsageError(f"This key is admitted already, as {other}: `djinn key revoke {other}`.")

    def _read_permit(self, name: str) -> dict[PublicKey, Permit]:
        """Return the admission in a file, by its key; none where the file is gone."""
        try:
            spelled, _, until = read_own(self._file("allowed", name)).decode().partition(_UNTIL)
        except FileNotFoundError:
            return {}
        person, plus, _ = name.partition("+")
        permit = Permit(person=person, until=read_moment(until) if until else None, lent=bool(plus))
        return {read_public(spelled): permit}

    def _read_pair(self, path: Path, name: str) -> KeyPair:
        try:
            kept = msgspec.json.decode(read_own(path), type=_Kept)
        except FileNotFoundError:
            raise UsageError(f"You have no key {name}; `djinn key list` has those that you have.") from None
        except (msgspec.MsgspecError, ValueError):
            raise UsageError(f"{path} holds no key of Djinn; `djinn key new` draws one.") from None
        return KeyPair(public=kept.public, secret=kept.secret)

    def _read(self, kind: str, name: str) -> PublicKey | None:
        try:
            return read_public(read_own(self._file(kind, name)).decode().partition(FOUND_BY)[0])
        except FileNotFoundError:
            return None


class Admitted:
    """The admitted persons, as in the folder at each use: it is read again when it has changed, and every AGAIN_SECONDS
    while one of its files is unreadable, perhaps for want of descriptors."""

    def __init__(self, folder: KeyFolder, path: Path) -> None:
        self._folder, self._path = folder, path
        self._lock = threading.Lock()  # handshakes are answered beside messages; an older reading must not come last
        self._stamp: int | None = None
        self._again = math.inf
        self._permits: Mapping[PublicKey, Permit] = {}

    def name_of(self, public: PublicKey) -> str | None:
        """Return the name of the person with that key; None for a person who is not admitted, or no longer."""
        permit = self.permit(public)
        return None if permit is None or permit.ended(self._folder.now()) else permit.person

    def permit(self, public: PublicKey) -> Permit | None:
        """Return the admission of a key, which may have ended; None where there is none."""
        return self._look().get(public)

    def knows(self, person: str) -> bool:
        """Return whether a key has been admitted under this name, until a moment that may have passed, and was not
        revoked."""
        return any(permit.person == person for permit in self._look().values())

    def persons(self) -> frozenset[str]:
        """Return the names of the persons admitted now."""
        now = self._folder.now()
        return frozenset(permit.person for permit in self._look().values() if not permit.ended(now))

    def _look(self) -> Mapping[PublicKey, Permit]:
        """Return the admissions in the folder now."""
        with self._lock:
            stamp = settled_stamp(self._path)
            if stamp is None or stamp != self._stamp or time.monotonic() > self._again:
                self._permits, whole = self._folder.read_permits()
                self._stamp, self._again = stamp, math.inf if whole else time.monotonic() + AGAIN_SECONDS
            return self._permits


def _named(file: str) -> Path:
    """Return the path of a file of an own pair. UsageError for a folder, and for an unknown user."""
    try:
        path = Path(file).expanduser()
    except RuntimeError:
        raise UsageError(f"{file!r} names no file: there is no such user.") from None
    if path.is_dir():
        raise UsageError(f"{in_quotes(file)} is a folder, and a key is a file in one: name that, or the key itself.")
    return path


def settled_stamp(folder: Path) -> int | None:
    """Return when a folder changed; None so soon after a change that a second change could have the same time."""
    try:
        changed = folder.stat().st_mtime_ns
    except OSError:
        return None
    return changed if abs(time.time_ns() - changed) > _SETTLED_NANOSECONDS else None


def _end(permit: Permit) -> float:
    return math.inf if permit.until is None else permit.until


def _admission(public: PublicKey, until: float | None) -> bytes:
    """Return the text of a file of `allowed`."""
    return f"{spell_public(public)}{_UNTIL + spell_moment(until) if until is not None else ''}".encode()


def write_key_file(path: Path, text: bytes, *, anew: bool = False) -> None:
    """Write a file of mode 0600 atomically. UsageError where there is one and it must not be replaced."""
    for folder in (path.parent.parent, path.parent):
        make_own_folder(folder, "set JUPYTER_DATA_DIR to a folder of your own")
    with _aside(path) as aside:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        if anew:
            os.replace(aside, path)
            return
        try:
            os.link(aside, path)
        except FileExistsError:
            raise UsageError(f"There is a key {path.name} already, in {path.parent}.") from None


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_PART}")
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


# The keys of engines that a service (a cluster or a hub) has reported. They lie beside the keys that the user trusts,
# each with the name of its service, and are removed when the service no longer has that engine.

KEPT_SECONDS: Final = 60.0  # another process may have found an engine since the list of present ones was made


class FoundKeys:
    """The keys that one service has reported. Keys that the user trusts by `djinn key trust` stay unchanged."""

    def __init__(self, keys: KeyFolder, service: str) -> None:
        self._keys, self._service = keys, service

    def note(self, place: str, public: PublicKey) -> None:
        """Trust the key of the engine at `HOST:PORT`, also in place of an earlier engine's. UsageError where the user
        trusts another key there."""
        if self._keys.found_by(place) is None and self._keys.trusted(place) is not None:
            return self._keys.trust(place, public)
        text = f"{spell_public(public)}{FOUND_BY}{self._service}"
        write_key_file(self._file(place), text.encode(), anew=True)

    def clear(self, there: Collection[str]) -> None:
        """Forget the keys from this service, except those of the last minute and of the engines that are `there`: all
        engines of the service."""
        for place in self._keys.names("trusted"):
            if place not in there and self._keys.found_by(place) == self._service and self._is_old(place):
                self._file(place).unlink(missing_ok=True)

    def _is_old(self, place: str) -> bool:
        try:
            return self._keys.now() - self._file(place).stat().st_mtime > KEPT_SECONDS
        except FileNotFoundError:
            return False

    def _file(self, place: str) -> Path:
        return self._keys.folder("trusted") / place
