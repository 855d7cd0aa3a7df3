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


class TreeRequests:
    def __init__(self, sessions: SessionTable, runtime: Runtime) -> None:
        self._sessions, self._tokenizer = sessions, runtime.tokenizer

    @handles(ask.ReadTree, changes=False)
    def read_tree(self, request: ask.ReadTree, holder: Holder) -> Tree:
        return Tree(branches=tuple(self._branch(session) for session in self._sessions.values()))

    def _branch(self, session: Session) -> Branch:
        return Branch(
            session=session.name,
            state=session.state,
            stops=tuple(_stops(session)),
            present=session.history.present,
            tokens=len(session.tokens),
            text=self._tokenizer.decode(session.tokens[-TOKENS_TOLD:]),
            forked_from=session.forked_from,
            stop=session.standing,
            dropped=session.history.dropped,
        )


def _stops(session: Session) -> Iterator[StopDescription]:
    """Yield the stops of the history; the present one is marked edited where an edit is in force now."""
    for stop in session.history.describe():
        here = stop.index == session.history.present
        yield msgspec.structs.replace(stop, edited=bool(session.edits_in_force)) if here else stop
