"""The persons with whom a session is shared. Any thread may read; the engine's alone writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from djinn_jupyter.errors import UsageError
from djinn_jupyter.wire.base import Access, SharedWith

MOST_PERSONS: Final = 100  # all of them are in every description of the session


class Grants:
    """The mapping is replaced whole, because the service looks into it for each message."""

    def __init__(self) -> None:
        self._access: Mapping[str, Access] = {}

    @property
    def by_person(self) -> dict[str, Access]:
        return dict(self._access)

    def access(self, person: str) -> Access | None:
        return self._access.get(person)

    def grant(self, person: str, access: Access | None) -> None:
        """Give a person this access in place of another; None takes it back. UsageError where they would be more than
        MOST_PERSONS."""
        others = {name: given for name, given in self._access.items() if name != person}
        if access is not None and len(others) >= MOST_PERSONS:
            raise UsageError(
                f"A session is shared with at most {MOST_PERSONS} persons: take it back from one (--none)."
            )
        self._access = others if access is None else {**others, person: access}

    def take_over(self, given: Mapping[str, Access]) -> None:
        """Grant the same as an earlier session of the name did."""
        self._access = dict(given)

    def describe(self) -> tuple[SharedWith, ...]:
        return tuple(SharedWith(person=person, access=access) for person, access in sorted(self._access.items()))
