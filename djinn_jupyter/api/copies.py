"""Copies of results that read from a session. In this process a copy reads from the same session; an unpickled one is a
plain value without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from djinn_jupyter.errors import IllegalMove

if TYPE_CHECKING:
    from djinn_jupyter.wire.replies import Welcome


COPIED: Final = (
    "This is a copy of a result, without its engine: load the engine again and open the session there to read more."
)


class NoEngine:
    """The channel of a copy, which refuses all but the description of the model."""

    down_since = None

    def __init__(self, welcome: Welcome | None = None) -> None:
        self.welcome = welcome

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # copy and pickle look these up
            raise AttributeError(name)
        raise IllegalMove(COPIED)


class ReadsSession:
    """A result that reads more from its `session`."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"session": _KeptSession(self.__dict__["session"])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        session = state["session"].session
        self.__dict__.update(state, session=session)
        if isinstance(session.channel, NoEngine):
            self._moved_on = COPIED


class _KeptSession:
    """The session of a copied result: itself in this process, elsewhere a session without an engine."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def __deepcopy__(self, memo: object) -> _KeptSession:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        one = self.session
        return _without_engine, (type(one), one.name, one.channel.welcome, one.moves, one.changes)


def _without_engine(kind: type[Any], name: str, welcome: Welcome, moves: int, changes: int) -> _KeptSession:
    session = kind(NoEngine(welcome), name)
    session.moves, session.changes = moves, changes
    return _KeptSession(session)
