"""The places of a session's bytes and the moves between them: a table and nothing else.

resident   on the device, all of them
storing    still on the device, while those without a copy are copied; can be called back at any moment
host       swapped out, with copies in main memory
disk       swapped out, with copies on disk of some or all
loading    on the way back to the device
"""

from __future__ import annotations

from typing import Final, Literal

from djinn_jupyter.engine.session.states import follow
from djinn_jupyter.wire.nouns import Residency
from djinn_jupyter.wire.texts import in_quotes

ResidenceMove = Literal["leave", "call_back", "reach_host", "reach_disk", "sink", "come", "arrive", "begin_anew"]

MOVES: Final[dict[tuple[Residency, ResidenceMove], Residency]] = {
    ("resident", "leave"): "storing",
    ("storing", "call_back"): "resident",
    ("storing", "reach_host"): "host",
    ("storing", "reach_disk"): "disk",
    ("host", "sink"): "disk",
    ("host", "come"): "loading",
    ("disk", "come"): "loading",
    ("loading", "arrive"): "resident",
    ("loading", "reach_host"): "host",
    ("loading", "reach_disk"): "disk",
    ("host", "begin_anew"): "resident",
    ("disk", "begin_anew"): "resident",
}


def after(state: Residency, move: ResidenceMove, name: str) -> Residency:
    """Return the state that `move` leads to from `state`. Raises IllegalMove, naming the session, where the table has
    none."""
    return follow(MOVES, state, move, f"Session {in_quotes(name)} is {state} and cannot {move.replace('_', ' ')}.")
