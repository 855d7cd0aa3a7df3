"""Two engines of one model between which a session moves: their folders, and the three steps."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.remote.engine.move_folder import MoveFolder
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.provenance import Provenance
from tests.engine.desk import Desk
from tests.engine.persistence.crashes import journal

MOVE: Final = "0123456789abcdef" * 2


def moves_below(desk: Desk, root: Path) -> None:
    """Have the engine find moves there."""
    persistence = desk.engine.persistence
    persistence.moves.folder = MoveFolder(root / "moves", persistence.identity, desk.engine.forward.device)


def begun(desk: Desk, root: Path, name: str) -> tuple[str, ...]:
    """Let an engine keep the journal of that name below `root`, and find moves there; the sessions that it found."""
    moves_below(desk, root)
    return journal(desk, root / name)


def provenance(desk: Desk) -> Provenance:
    return desk.ask(ask.ReadProvenance()).provenance


def sent(one: Desk, other: Desk, name: str = "a", move: str = MOVE) -> Any:
    return one.ask(ask.SendAway(session=name, to=provenance(other), move=move))


def taken(other: Desk, name: str = "a", move: str = MOVE) -> Any:
    return other.ask(ask.TakeIn(session=name, move=move))


def settled(one: Desk, name: str = "a", move: str = MOVE) -> bool:
    return bool(one.ask(ask.SettleMove(session=name, move=move)).stayed)


def moved(one: Desk, other: Desk, name: str = "a") -> None:
    sent(one, other, name)
    taken(other, name)
    assert not settled(one, name)


def has_looked(desk: Desk) -> bool:
    """Let the engine settle the moves that their clients have left; True where it has, or cannot yet."""
    desk.engine.tick()
    return not desk.engine.moves._settling


def answers(desk: Desk, name: str = "a") -> bool:
    """True where the session is this engine's, by what a client can ask of it."""
    with suppress(DjinnError):
        desk.ask(ask.ReadHistory(session=name))
        return True
    return False
