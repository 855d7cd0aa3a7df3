"""The memory budget of each owner: the bytes still allowed, and the sentence of a refusal. Moves nothing.

The engine's own user has no budget. The device memory of an owner is checked whenever one of its sessions takes pages.
An excess makes other sessions of the same owner leave the device, never another's. Sessions that leave go to host and
disk. They are never refused there, which would keep them on the device, but the owner may create nothing more until the
total is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from djinn_jupyter.engine.memory.offload.swappable import StorageTable
from djinn_jupyter.engine.session.session import Session, given_arrays, past_arrays
from djinn_jupyter.engine.session.table import Holdings, by_person, holdings_of
from djinn_jupyter.errors import OverQuota, SlabFull, UsageError
from djinn_jupyter.units import spell_bytes
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.nouns import OwnerBudget, Tier
from djinn_jupyter.wire.texts import in_quotes

BudgetOf = Callable[[str], OwnerBudget]
NO_BUDGET: Final = OwnerBudget()


class AwaitedRoom(SlabFull):
    """Sessions of the same person are leaving the device: the request waits for them. Never shown to a client."""


def ask_for_more(person: str) -> str:
    """Return the end of every refusal."""
    return f"ask the engine's user for more (`djinn quota {person}`)"


class OwnerBudgets:
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
        self._budget_of: BudgetOf | None = None
        self.require_reader: Callable[[str], None] = lambda person: None

    def use(self, budget_of: BudgetOf, require_reader: Callable[[str], None] | None = None) -> None:
        """Apply `budget_of` to every person at each check. `require_reader` refuses one with too many unread
        replies."""
        self._budget_of = budget_of
        self.require_reader = require_reader or self.require_reader

    def of(self, person: str | None) -> OwnerBudget:
        return NO_BUDGET if person is None or self._budget_of is None else self._budget_of(person)

    def short(self, session: Session, need: int, *, instead: bool = False) -> int:
        """Return the bytes of `need` that exceed the person's device budget now: 0 where all are granted. `instead`: in
        place of the session's own."""
        person = person_of(session.name)
        most = self.of(person).device
        if most is None or person is None or not need:
            return 0
        most -= self.added(person)
        held = self._held(person, lambda held: held.on_device + need <= most, session if instead else None)
        return max(0, held.on_device + need - most)

    def require_given(self, need: int, most: int) -> None:
        """Raise UsageError where rules and edits of all sessions would have more than `most` bytes of arrays with so
        many more: they stay in main memory, and in the journal, until they are removed; for a rule with past passes,
        until the session runs another prompt."""
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
        """Raise OverQuota where a person has more on host or disk than allowed, or would with so many bytes more. The
        session `but` does not count: it gives up its memory."""
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
        budget = self.of(person)
        return budget.host if tier == "host" else budget.disk

    def _used(self, person: str, tier: Tier, but: Session | None = None) -> int:
        held = self._held(person, lambda held: False, but)
        return held.host if tier == "host" else held.disk + self._saved(person)

    def _held(self, person: str, enough: Callable[[Holdings], bool], but: Session | None = None) -> Holdings:
        """Return a person's bytes. If the bytes of all their sessions, shared or not, are little `enough`, the sessions
        of others are not examined."""
        counted = [session for session in self._sessions.values() if session is not but]
        own = holdings_of((one for one in counted if person_of(one.name) == person), self._storage_table)
        return own if enough(own) else by_person(counted, self._storage_table).get(person, Holdings())
