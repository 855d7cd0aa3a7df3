"""The device memory that a method's jobs take beside the pages of their sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.session.residence import Pieces
from djinn_jupyter.engine.session.runtime import Space
from djinn_jupyter.engine.session.session import Session


class Workspace:
    """The device memory that jobs of one kind hold together beside their sessions' pages, under the `name` that
    statistics have for it. `idle` are those of its bytes that no request uses now, which `release` gives back."""

    def __init__(
        self,
        budget: Budget,
        space: Space,
        name: str,
        *,
        idle: Callable[[], int] = lambda: 0,
        release: Callable[[], int] = lambda: 0,
    ) -> None:
        self.budget, self.space, self.held = budget, space, 0
        budget.join(self, Part(name=name, held=lambda: self.held, idle=idle, release=release))

    @contextmanager
    def opened(self, session: Session) -> Iterator[Reservation]:
        """Give the job of a session its room; it is returned at the end, however the job ends."""
        room = Reservation(self, session)
        try:
            yield room
        finally:
            room.give_back(room.held)

    def draw(self, size: int) -> None:
        self.budget.take(size, by=self)
        self.held += size

    def give_back(self, size: int) -> None:
        self.budget.give_back(size)
        self.held -= size


class Reservation:
    """The bytes that the job of one session holds: the expected ones of a step are taken before it."""

    def __init__(self, workspace: Workspace, session: Session) -> None:
        self._workspace, self._session = workspace, session
        self.held = 0

    def take(self, size: int) -> Pieces:
        """Take `size` bytes; others are evicted for them, and waited for. Raises SlabFull, OverQuota, and GaveWay where
        earlier work waits for the held bytes."""
        space = self._workspace.space
        yield from space.set_aside(self._session, size, of_owner_budget=size)
        space.put_back()
        self._workspace.draw(size)
        self._count(size)

    def give_back(self, size: int) -> None:
        self._workspace.give_back(size)
        self._count(-size)

    def _count(self, size: int) -> None:
        self.held += size
        self._session.residence.reserve(size)
