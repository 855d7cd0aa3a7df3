"""Quotas: the most that a person may have at an engine, how they are spelled, and the files that have a person's own.

quotas/NAME      beside the folder of admitted keys: of a person, what differs from the common quota
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from djinn_jupyter.amounts import parse_bytes, spell_option
from djinn_jupyter.errors import UsageError
from djinn_jupyter.moments import read_duration, spell_duration
from djinn_jupyter.wire.frozen import Frozen
from djinn_jupyter.wire.keys import KeyFolder, settled_stamp, write_key_file
from djinn_jupyter.wire.own import read_own

log = logging.getLogger(__name__)

KINDS: Final = ("device", "host", "disk", "sessions", "running")
EXAMPLE: Final = "device=8GiB,sessions=20,running=2h"
_COUNT: Final = re.compile(r"\d{1,9}")
Told = Mapping[str, int | None]  # the fields of a quota that are told; None: no limit


class Quota(Frozen, frozen=True):
    """The most that a person may have; None is no limit. `running` is in seconds of the last day."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    sessions: int | None = None
    running: int | None = None

    def but(self, told: Told) -> Quota:
        """Return this quota with what is told of another."""
        return msgspec.structs.replace(self, **told)

    def __str__(self) -> str:
        return ",".join(f"{kind}={spelled(kind, most)}" for kind in KINDS if (most := getattr(self, kind)) is not None)


NO_QUOTA: Final = Quota()


def read_quota(text: str) -> dict[str, int | None]:
    """Return what a text such as `device=8GiB,sessions=20` tells. UsageError where it is no quota."""
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
    """Spell the most of something as a quota has it."""
    match kind:
        case "sessions":
            return str(most)
        case "running":
            return spell_duration(most).replace(" ", "")
    return spell_option(most)


def spell_told(told: Told) -> str:
    """Spell what is told as one gives it."""
    return ",".join(f"{kind}={'none' if most is None else spelled(kind, most)}" for kind, most in told.items())


def _exact(told: Told) -> str:
    """Spell what is told to the byte and the second."""
    return ",".join(f"{kind}={_number(kind, most)}" for kind, most in told.items())


def _number(kind: str, most: int | None) -> str:
    return "none" if most is None else f"{most}s" if kind == "running" else str(most)


class QuotaFolder:
    """The quotas of single persons, as far as they differ from the common one."""

    def __init__(self, keys: KeyFolder) -> None:
        self.path = keys.folder("quotas")

    def tell(self, person: str, told: Told) -> None:
        """Tell a person's own quota anew."""
        write_key_file(self.path / person, _exact(told).encode(), anew=True)

    def forget(self, person: str) -> None:
        """Give a person the common quota again."""
        (self.path / person).unlink(missing_ok=True)

    def read(self) -> dict[str, Told]:
        """Return what is told of each person. A file that cannot be read or trusted tells nothing, which is logged."""
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
    """The quota of each person as the folder has it at each look, over the common one."""

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
