"""The table of residency: a legal move has its effect, an illegal one raises and changes nothing."""

from __future__ import annotations

import typing
from collections import deque

import pytest

from djinn_jupyter.engine.session import residence
from djinn_jupyter.engine.session.residence import Residence
from djinn_jupyter.errors import IllegalMove
from djinn_jupyter.wire.nouns import Residency

STATES = typing.get_args(Residency)
MOVES = typing.get_args(residence.ResidenceMove)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", MOVES)
def test_every_move_from_every_state(state, move):
    here = Residence(state=state)
    if (state, move) in residence.MOVES:
        here.move(move, "a")
        assert here.state == residence.MOVES[state, move]
    else:
        with pytest.raises(IllegalMove, match="'a'"):
            here.move(move, "a")
        assert here.state == state


def test_every_state_is_reached_and_left_for_the_device():
    for start in STATES:
        seen, queue = {start}, deque([start])
        while queue:
            here = queue.popleft()
            for (state, _), after in residence.MOVES.items():
                if state == here and after not in seen:
                    seen.add(after)
                    queue.append(after)
        assert seen == set(STATES)


def test_whoever_is_held_is_on_the_device():
    here = Residence(state="host")
    with pytest.raises(IllegalMove):
        here.hold()
    with pytest.raises(IllegalMove):
        here.let_go()
    assert here.busy == 0
