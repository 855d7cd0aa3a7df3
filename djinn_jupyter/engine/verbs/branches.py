"""The tree that stops and forks make. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from djinn_jupyter.engine.mailbox import Holder
from djinn_jupyter.engine.session import Session
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.nouns import StopDescription
from djinn_jupyter.wire.readings import Branch
from djinn_jupyter.wire.replies import Tree

if TYPE_CHECKING:
    from djinn_jupyter.engine.engine import Engine

TOKENS_TOLD: Final = 12


def read_tree(engine: Engine, request: ask.ReadTree, holder: Holder) -> Tree:
    return Tree(branches=tuple(_branch(engine, session) for session in engine.sessions.values()))


def _branch(engine: Engine, session: Session) -> Branch:
    return Branch(
        session=session.name,
        state=session.state,
        stops=tuple(_stops(session)),
        present=session.history.present,
        tokens=len(session.tokens),
        text=engine.tokenizer.decode(session.tokens[-TOKENS_TOLD:]),
        forked_from=session.forked_from,
        stop=session.standing,
        dropped=session.history.dropped,
    )


def _stops(session: Session) -> Iterator[StopDescription]:
    """Those of the history; the present one is edited where an edit is in force now."""
    for stop in session.history.describe():
        here = stop.index == session.history.present
        yield msgspec.structs.replace(stop, edited=bool(session.edits_in_force)) if here else stop
