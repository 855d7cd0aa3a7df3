"""The adapters that clients have added, by the person who added each and its name, and their bytes in the budget.

Who may compute with one is the person who added it, in sessions of theirs; None is the engine's own user.
"""

from __future__ import annotations

import re
from typing import Final

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.model.added.low_rank import HeldAdapter
from djinn_jupyter.engine.session.added_tensors import AddedTensors
from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.adapters import AdapterDescription, AdapterIdentity
from djinn_jupyter.wire.texts import shown

MOST: Final = 256  # of one person
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
NONE: Final = ("off", "none")  # what the magic has for no adapter


class AdapterTable(AddedTensors):
    """The adapters of an engine. Used on its thread."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget, "adapters")
        self._adapters: dict[tuple[str | None, str], HeldAdapter] = {}

    def of(self, person: str | None) -> list[HeldAdapter]:
        """Return a person's adapters by name."""
        return sorted((one for key, one in self._adapters.items() if key[0] == person), key=lambda one: one.name)

    def bytes_of(self, person: str | None) -> int:
        """Return the bytes of the tensors of a person's adapters."""
        return sum(one.bytes_held for one in self.of(person))

    def get(self, person: str | None, name: str) -> HeldAdapter | None:
        return self._adapters.get((person, name))

    def find(self, person: str | None, name: str) -> HeldAdapter:
        """Return the adapter of that name. Raises UsageError where there is none."""
        found = self.get(person, name)
        if found is None:
            named = ", ".join(one.name for one in self.of(person)) or "none"
            raise UsageError(f"There is no adapter {shown(name)}; there are {named}. Add one with engine.add_adapter.")
        return found

    def put(self, person: str | None, adapter: HeldAdapter) -> None:
        if self.get(person, adapter.name) is None and len(self.of(person)) >= MOST:
            raise UsageError(f"There are {MOST} adapters already, which is the limit: remove some.")
        self._adapters[person, adapter.name] = adapter

    def take_out(self, person: str | None, adapter: HeldAdapter) -> None:
        """Forget an adapter that no session computes with, and let its tensors go."""
        del self._adapters[person, adapter.name]
        self.give_back(adapter.bytes_held)
        adapter.let_go(f"The adapter {adapter.name} was removed.")

    def same(self, person: str | None, identity: AdapterIdentity) -> HeldAdapter | None:
        """Return the adapter of that name where it is of the same files. UsageError where it is another."""
        there = self.get(person, identity.name)
        if there is not None and there.identity.digest != identity.digest:
            raise UsageError(
                f"There is another adapter {identity.name} already, of {there.identity.folder}: remove it first "
                f"(%djinn_remove_adapter {identity.name}), or choose another name."
            )
        return there


def require_name(name: str) -> None:
    """Raise UsageError for a name that an adapter cannot have."""
    if not NAME.fullmatch(name) or name in NONE:
        raise UsageError(
            f"An adapter's name is of letters, digits, _, - and ., such as sql, and not {' or '.join(NONE)}; "
            f"{name!r} is not."
        )


def described(adapter: HeldAdapter, sessions: tuple[str, ...]) -> AdapterDescription:
    """Return what an adapter is, and which sessions compute with it."""
    own, paths = adapter.identity, [part.path for part in adapter.parts or ()]
    return AdapterDescription(
        name=own.name,
        folder=own.folder,
        digest=own.digest,
        modules=len(paths),
        targets=tuple(sorted({path.rpartition(".")[2] for path in paths})),
        bytes_held=adapter.bytes_held,
        sessions=sessions,
        missing=adapter.missing,
    )
