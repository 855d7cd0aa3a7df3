"""The device memory of measurements, drawn from the engine's budget: what a job holds beside its session's own pages,
such as residuals, patterns, or lines under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from djinn_jupyter.engine.memory.budget import Budget, Part
from djinn_jupyter.engine.session.runtime import Space
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.steps import Pieces


class Workspace:
    """The part of the budget that jobs of one kind hold together, under the `name` that statistics have for it. `idle`
    are those of its bytes that no request uses now, which `release` gives back."""

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
        """Give the job of a session its room; what it holds is given back at the end, however it ends."""
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
    """The bytes that the job of one session holds: those expected of a step are taken before it."""

    def __init__(self, workspace: Workspace, session: Session) -> None:
        self._workspace, self._session = workspace, session
        self.held = 0

    def take(self, size: int) -> Pieces:
        """Take `size` bytes; others are evicted for them, and waited for. Raises SlabFull, OverQuota, and GaveWay where
        work that was begun earlier waits for what is held."""
        space = self._workspace.space
        yield from space.set_aside(self._session, size, of_quota=size)
        space.put_back()
        self._workspace.draw(size)
        self._count(size)

    def give_back(self, size: int) -> None:
        self._workspace.give_back(size)
        self._count(-size)

    def _count(self, size: int) -> None:
        self.held += size
        self._session.residence.reserve(size)
