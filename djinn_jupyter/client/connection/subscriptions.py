"""The listeners to an engine's events, by the session that they listen to."""

from __future__ import annotations

from collections.abc import Callable

from djinn_jupyter.wire.replies import Event, EventsMissed

Heard = Callable[[Event], None]


class Subscriptions:
    """The session None stands for all. EventsMissed is heard by every listener."""

    def __init__(self) -> None:
        self._listeners: dict[str | None, list[Heard]] = {}

    def add(self, session: str | None, heard: Heard) -> None:
        self._listeners.setdefault(session, []).append(heard)

    def remove(self, session: str | None, heard: Heard) -> bool:
        """Remove a listener; it may be gone already. Return True where it was the last one of its session."""
        listeners = self._listeners.get(session, [])
        if heard in listeners:
            listeners.remove(heard)
        return not listeners and self._listeners.pop(session, None) is not None

    @property
    def sessions(self) -> tuple[str | None, ...]:
        return tuple(self._listeners)

    def hand_out(self, event: Event) -> None:
        for heard in self._hearing(event):
            heard(event)

    def _hearing(self, event: Event) -> tuple[Heard, ...]:
        if isinstance(event, EventsMissed):
            return tuple(heard for listeners in self._listeners.values() for heard in listeners)
        return (*self._listeners.get(event.session, ()), *self._listeners.get(None, ()))
