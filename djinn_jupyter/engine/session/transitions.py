"""Moves by a table, as the states of a session and those of its bytes make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from djinn_jupyter.errors import IllegalMove

State = TypeVar("State")
AnyMove = TypeVar("AnyMove")


def follow(moves: Mapping[tuple[State, AnyMove], State], state: State, move: AnyMove, refusal: str) -> State:
    """Return the state that `move` leads to from `state`. Raises IllegalMove with the refusal where the table has
    none."""
    following = moves.get((state, move))
    if following is None:
        raise IllegalMove(refusal)
    return following
