"""The quotas of persons for memory: what each may have more, and the sentence that refuses. Moves nothing.

The engine's own user has none. A person's device memory is looked at whenever a session of theirs takes pages: what is
beyond makes other sessions of the same person leave the device, never another's. Host and disk are where sessions go
that leave; they are not refused a place there, which would keep them on the device, but the person may make nothing
more until there is less of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.session.jobs import STEP_SECONDS, RunningTime
from djinn_jupyter.engine.session.session import Session, given_arrays, past_arrays
from djinn_jupyter.engine.session.table import Holdings, by_person, holdings_of
from djinn_jupyter.errors import OverQuota, SlabFull, UsageError
from djinn_jupyter.files import PART, is_plain, make_folder, written_aside
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import Tier
from djinn_jupyter.wire.people import NO_QUOTA, Quota
from djinn_jupyter.wire.texts import in_quotes

QuotaOf = Callable[[str], Quota]


class AwaitedRoom(SlabFull):
    """Sessions of the same person are leaving the device: the request waits for them. Never told to a client."""


def ask_for_more(person: str) -> str:
    """Return the end of every refusal."""
    return f"ask the engine's user for more (`djinn quota {person}`)"


class MemoryQuotas:
    """`saved` has the bytes of a person's checkpoints, which count for the disk, and `added` those of the modules and
    adapters that the person added, which count for the device."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        storage_table: StorageTable,
        saved: Callable[[str], int] = lambda person: 0,
        added: Callable[[str | None], int] = lambda person: 0,
    ) -> None:
        self._sessions, self._storage_table = sessions, storage_table
        self._saved, self.added = saved, added
        self._quota_of: QuotaOf | None = None
        self.require_reader: Callable[[str], None] = lambda person: None

    def heed(self, quota_of: QuotaOf, require_reader: Callable[[str], None] | None = None) -> None:
        """Hold every person to what `quota_of` says at each look. `require_reader` raises an error for one who leaves
        too many replies unread for another to be computed."""
        self._quota_of = quota_of
        self.require_reader = require_reader or self.require_reader

    def of(self, person: str | None) -> Quota:
        return NO_QUOTA if person is None or self._quota_of is None else self._quota_of(person)

    def short(self, session: Session, need: int, *, instead: bool = False) -> int:
        """Return the bytes of `need` that the session's person may not have on the device now: 0 where all are granted.
        `instead`: of what the session itself holds."""
        person = person_of(session.name)
        most = self.of(person).device
        if most is None or person is None or not need:
            return 0
        most -= self.added(person)
        held = self._held(person, lambda held: held.on_device + need <= most, session if instead else None)
        return max(0, held.on_device + need - most)

    def require_given(self, need: int, most: int) -> None:
        """Raise UsageError where rules and edits of all sessions would have more than `most` bytes of arrays with so
        many more: they stay in main memory, and in the journal, until they are removed; where passes were run under a
        rule, until the session runs another prompt."""
        sessions = self._sessions.values()
        each = (array for one in sessions for array in (*given_arrays(one), *past_arrays(one)))
        given = {id(array): array.nbytes for array in each}
        if (held := sum(given.values())) + need > most:
            raise UsageError(
                f"The arrays of rules and edits take {spell_bytes(held)} and {spell_bytes(need)} more are needed; all "
                f"sessions may have {spell_bytes(most)} of them. Remove rules, close a session, or allow more device "
                "memory."
            )

    def refusal(self, session: Session, need: int) -> OverQuota:
        """Return the error where the session's person may not have `need` bytes, and no session of theirs can leave."""
        person = person_of(session.name)
        assert person is not None
        most, held = self.of(person).device, self._held(person, lambda held: False)
        added = self.added(person)
        remove = ", remove an added module or adapter" if added else ""
        remove += ", remove a rule or an edit" if held.given else ""
        used = spell_bytes(held.on_device + added)
        return OverQuota(
            f"{person}'s quota of device memory is {spell_bytes(most or 0)}: {used} are held and {spell_bytes(need)} "
            f"more are needed, with no other session that can leave. Close a session, run fewer tokens{remove}, or "
            f"{ask_for_more(person)}."
        )

    def takes(self, session: Session, tier: Tier) -> bool:
        """True where the session's person may have all of it in the tier."""
        person = person_of(session.name)
        most = None if person is None else self._most(person, tier)
        if person is None or most is None:
            return True
        new = holdings_of([session], self._storage_table)
        held, more = self._used(person, tier), new.device if tier == "host" else max(new.device, new.host)
        return held + more <= most

    def require_place(self, session: Session, tier: Tier) -> None:
        """Raise OverQuota where the session's person may not have all of it in the tier."""
        person = person_of(session.name)
        if person is not None and not self.takes(session, tier):
            most, used = spell_bytes(self._most(person, tier) or 0), spell_bytes(self._used(person, tier))
            raise OverQuota(
                f"{person}'s quota of {tier} memory is {most}, of which {used} are held, so "
                f"{in_quotes(session.name)} stays where it is. Close a session, or {ask_for_more(person)}."
            )

    def require_less(self, person: str, *, more_on_disk: int = 0, but: Session | None = None) -> None:
        """Raise OverQuota where a person has more on host or disk than they may, or would with so many bytes more. The
        session `but` counts for nothing: it gives up what it has."""
        for tier, more in (("host", 0), ("disk", more_on_disk)):
            most = self._most(person, "host" if tier == "host" else "disk")
            if most is None:
                continue
            used = self._used(person, "host" if tier == "host" else "disk", but)
            if used + more > most:
                needs = f" and {spell_bytes(more)} more are needed" if more else ""
                drop = ", drop a checkpoint" if tier == "disk" else ""
                raise OverQuota(
                    f"{person}'s quota of {tier} memory is {spell_bytes(most)}: {spell_bytes(used)} are held{needs}. "
                    f"Close a session{drop}, or {ask_for_more(person)}."
                )

    def _most(self, person: str, tier: Tier) -> int | None:
        quota = self.of(person)
        return quota.host if tier == "host" else quota.disk

    def _used(self, person: str, tier: Tier, but: Session | None = None) -> int:
        held = self._held(person, lambda held: False, but)
        return held.host if tier == "host" else held.disk + self._saved(person)

    def _held(self, person: str, enough: Callable[[Holdings], bool], but: Session | None = None) -> Holdings:
        """Return what a person holds. Where all that their sessions have, shared or not, is little `enough`, the
        sessions of others are not looked at."""
        counted = [session for session in self._sessions.values() if session is not but]
        own = holdings_of((one for one in counted if person_of(one.name) == person), self._storage_table)
        return own if enough(own) else by_person(counted, self._storage_table).get(person, Holdings())


# The running time of each person in a file beside the journal, so that a quota of the day outlives the engine.
# ROOT/times/HOST-0 of the engine whose journal is in ROOT/HOST-0 The next engine that has that folder goes on with it,
# and takes over those of engines whose folders are gone. An engine that is killed loses the time of its last
# WRITTEN_SECONDS.

log = logging.getLogger(__name__)

TIMES: Final = "times"
WRITTEN_SECONDS: Final = 10.0


class _KeptTimes(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds by step of each person; those of the engine's own user have no name."""

    step_seconds: float
    persons: dict[str, list[tuple[int, float]]]


class RunningTimesFile:
    """Written now and then while time is counted, and at the end. One that cannot be written is tried again; one that
    cannot be read counts for nothing, which is logged."""

    def __init__(self, journal: Path, running_time: RunningTime, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = journal.parent / TIMES / journal.name
        self._running_time, self._clock = running_time, clock
        self._written_at, self._counted = clock(), 0.0
        self._take_over()

    def attend(self) -> None:
        """Write what was counted since, where that is due."""
        if self._clock() - self._written_at >= WRITTEN_SECONDS:
            self.write()

    def write(self) -> None:
        self._written_at = self._clock()
        if self._running_time.counted_seconds == self._counted:
            return
        persons = {person or "": steps for person, steps in self._running_time.steps().items()}
        try:
            make_folder(self._path.parent)
            with written_aside(self._path) as (file, aside):
                file.write(msgspec.json.encode(_KeptTimes(step_seconds=STEP_SECONDS, persons=persons)))
                file.flush()
                aside.rename(self._path)
        except OSError as error:
            log.warning("The running time of persons cannot be kept: %s", error)
        else:
            self._counted = self._running_time.counted_seconds

    def _take_over(self) -> None:
        journals = self._path.parent.parent
        ended = [path for path in self._all() if path == self._path or not (journals / path.name).exists()]
        for path in ended:
            kept = _read(path)
            for person, steps in kept.persons.items() if kept is not None else ():
                self._running_time.take_over(person or None, steps)
        self.write()
        for path in ended:
            if path != self._path and self._path.exists():
                path.unlink(missing_ok=True)

    def _all(self) -> Iterator[Path]:
        for path in sorted(self._path.parent.glob("*")):
            if is_plain(path) and not path.name.endswith(PART):
                yield path


def _read(path: Path) -> _KeptTimes | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptTimes)
        if kept.step_seconds == STEP_SECONDS:
            return kept
        raise ValueError(f"its steps are of {kept.step_seconds} s")
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        log.warning("The running time in %s counts for nothing: %s", path, error)
        return None
