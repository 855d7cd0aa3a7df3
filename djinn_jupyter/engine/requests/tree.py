"""The tree of stops and forks. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from djinn_jupyter.engine.requests.handles import handles
from djinn_jupyter.engine.scheduling.mailbox import Holder
from djinn_jupyter.engine.session.runtime import Runtime
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.session.table import SessionTable
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.replies import Tree

TOKENS_TOLD: Final = 12
STOPS_TOLD: Final = 2**16  # of all sessions together, the last ones of each


class TreeRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._tokenizer = sessions, runtime.tokenizer

    @handles(ask.ReadTree)
    def read_tree(self, request: ask.ReadTree, holder: Holder) -> Tree:
        most = max(1, STOPS_TOLD // max(1, len(self._sessions)))
        return Tree(branches=tuple(self._branch(session, most) for session in self._sessions.values()))

    def _branch(self, session: Session, most: int) -> Branch:
        """Return a session's branch with `most` of its stops: the last ones, or those from where it stands on."""
        here = session.history.present
        first = max(0, len(session.history.stops) - most)
        first = first if here is None else min(first, here)
        return Branch(
            session=session.name,
            state=session.state,
            stops=tuple(_stops(session, first, most)),
            present=None if here is None else here - first,
            tokens=len(session.tokens),
            text=self._tokenizer.decode(session.tokens[-TOKENS_TOLD:]),
            forked_from=session.forked_from,
            stop=session.standing,
            dropped=session.history.dropped + first,
        )


def _stops(session: Session, first: int, most: int) -> Iterator[StopDescription]:
    """Yield stops of the history from the `first` one on; the present one is marked edited where an edit is in force
    now."""
    for number, stop in enumerate(session.history.describe()[first : first + most]):
        edited = bool(session.edits_in_force) if stop.index == session.history.present else stop.edited
        yield msgspec.structs.replace(stop, index=number, edited=edited)
