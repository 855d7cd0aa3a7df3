"""The places where sessions wait between two engines: a shared folder, or a store that both were given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from djinn_jupyter.engine.store.image import SessionImage
from djinn_jupyter.errors import UsageError
from djinn_jupyter.remote.engine.move_folder import MoveFolder
from djinn_jupyter.remote.engine.moving import Moving
from djinn_jupyter.wire.nouns import CheckpointDescription


class Moves(Protocol):
    """The sessions that wait in one place, and the decision of each move. `write` and `read` may take long, and are
    called in a thread of their own. Methods raise StorageFailed where the place fails."""

    def write(
        self, move: str, image: SessionImage, described: CheckpointDescription, abandoned: threading.Event
    ) -> int:
        """Store a waiting session, complete; return its bytes. Raises UsageError for a decided move of that name."""

    def read(self, move: str) -> SessionImage:
        """Return a waiting session. Raises UsageError where there is none, or not here; CheckpointRefused."""

    def begin_arrival(self, move: str) -> None:
        """Reserve the session for this engine. Raises IllegalMove where the move was cancelled, or another engine takes
        the session in."""

    def decide(self, moving: Moving) -> bool:
        """Decide that the session is with the engine at this end of the move, if nothing was decided. Return whether it
        is."""

    def forget(self, move: str) -> None:
        """Remove the remains of a move, once an engine without the session has durably forgotten it."""


class MovePlaces:
    """The places that one engine knows. A request may name only those of `stores`, which the engine's own user gave it;
    a journal also one that an earlier engine was given."""

    def __init__(self, folder: MoveFolder | None, stores: tuple[str, ...], open_store: Callable[[str], Moves]) -> None:
        self.folder, self.stores = folder, stores
        self._open_store = open_store
        self._opened: dict[str, Moves] = {}
        self._lock = threading.Lock()

    def at(self, store: str | None) -> Moves:
        """Return the sessions that wait in a store, or in the folder. Raises StorageFailed or MissingDependency where
        this engine cannot reach a store of its journal."""
        if store is None:
            return self._folder()
        with self._lock:
            if store not in self._opened:
                self._opened[store] = self._open_store(store)
            return self._opened[store]

    def require(self, store: str | None) -> None:
        """Raise UsageError where a session that moves to or from this engine cannot wait there."""
        if store is None:
            self._folder()
        elif store not in self.stores:
            raise UsageError(
                f"This engine was not given {store} as a place for sessions on their way: start it with --moves "
                f"{store}, or give both engines one --shared-journal."
            )

    def _folder(self) -> MoveFolder:
        """Return the folder, which the next engine with this one's journal has to find too."""
        if self.folder is None:
            raise UsageError(
                "This engine's journal is in a store, so that sessions wait there on their way: start the other engine "
                f"with --moves {self.stores[0]}, or give both one --shared-journal."
            )
        return self.folder
