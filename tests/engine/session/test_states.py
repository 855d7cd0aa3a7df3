"""The states of a session: the whole table, and the effect of each request in each state."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from djinn_jupyter.engine.session import states
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.errors import BY_CODE, DjinnError, IllegalMove
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from djinn_jupyter.wire.nouns import SessionState
from djinn_jupyter.wire.replies import Failed
from tests.engine.desk import ME, Desk, tokens

PAIRS = list(itertools.product(get_args(SessionState), get_args(states.SessionMove)))
PROMPT = tokens(10)


@pytest.mark.parametrize(("state", "move"), PAIRS)
def test_a_move_is_in_the_table_or_raises_and_changes_nothing(llama: Desk, state: Any, move: Any) -> None:
    llama.open()
    session = llama.session()
    before = session.state = state
    used = session.last_used
    try:
        if (state, move) in states.MOVES:
            session.check_move(move)
            assert session.state == before
            session.move(move)
            assert session.state == states.MOVES[state, move]
        else:
            for attempt in (session.check_move, session.move):
                with pytest.raises(IllegalMove, match=r"Session 'a' cannot .+: .+\."):
                    attempt(move)
                assert (session.state, session.last_used) == (before, used)
    finally:
        session.state = "idle"


def test_closed_is_the_end_and_every_other_state_has_a_way_out() -> None:
    assert not any(state == "closed" for state, _ in states.MOVES)
    for state in ("idle", "running", "paused"):
        assert (state, "close") in states.MOVES


def reading(session: Session) -> Any:
    """All of a session that a refused request must leave as it was."""
    frame = session.frame
    return (
        session.state,
        tuple(session.tokens),
        session.cache.length,
        None if frame is None else (frame.boundary, frame.step, frame.committed, frame.raw is None),
        frame,
        tuple(session.edits),
        session.history.describe(),
        session.history.present,
        tuple(session.breakpoints),
        tuple(session.rules),
        tuple(session.watches),
        session.logits_1V,
    )


def same(one: Any, other: Any) -> bool:
    """True if all are equal; the tensors among them have to be the same objects."""
    return all(x is y or x == y for x, y in zip(one, other, strict=True))


def of(*kinds: Any, **fields: Any) -> list[ask.SessionRequest]:
    return [kind(session="a", **fields) for kind in kinds]


BACK = [ask.Back(session="a"), ask.Back(session="a", by="layer")]
OF_A_STOP = [
    *of(ask.RevertEdits, ask.MeasureEffect, ask.ReadPass, ask.ReadStop),
    ask.ApplyEdit(session="a", edit=Scale(factor=2.0)),
]
ILLEGAL: dict[str, list[ask.SessionRequest]] = {
    "new": [
        *of(ask.Resume, ask.Step, ask.Lens, ask.ReadLogits),
        *BACK,
        *OF_A_STOP,
        *of(ask.Back, by="token"),
        *of(ask.Inspect, site="resid_post.3"),
        *of(ask.Run, tokens=(), extend=True),
    ],
    "finished": [
        *of(ask.Resume, ask.Inspect),
        *BACK,
        *OF_A_STOP,
        *of(ask.Step, by="token"),
        *of(ask.Back, by="token", count=5),
        *of(ask.Lens, site="resid_post.2"),
    ],
    "paused": [
        *of(ask.ReadLogits),
        *of(ask.Run, tokens=PROMPT, extend=True),
        *of(ask.Back, count=2),
        *of(ask.Back, by="layer", count=5),
        *of(ask.Back, by="token", count=3),
        *of(ask.Inspect, site="resid_post.5"),
    ],
    "running": [
        *of(ask.Resume, ask.Step, ask.Back, ask.Lens, ask.ReadLogits, ask.SwapOut),
        *OF_A_STOP,
        *of(ask.Run, tokens=PROMPT),
        *of(ask.Fork, name="b"),
        *of(ask.Inspect, site="resid_post.3"),
        *of(ask.Open, fresh=True),
        *of(ask.SaveCheckpoint, name="x"),
    ],
}
CASES = [(state, request) for state, requests in ILLEGAL.items() for request in requests]


@pytest.mark.parametrize(
    ("state", "request_"), CASES, ids=[f"{s}-{type(r).__name__}-{i}" for i, (s, r) in enumerate(CASES)]
)
def test_a_request_that_does_not_fit_is_refused_in_one_sentence_and_nothing_is_lost(
    llama: Desk, state: str, request_: ask.SessionRequest
) -> None:
    llama.open()
    ends: list[Any] = []
    if state == "finished":
        llama.run(PROMPT, 4)
    elif state == "paused":
        llama.stop_at(3, "step == 2")
        llama.run(PROMPT, 4)
    elif state == "running":
        llama.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=4, ignore_eos=True), ends)
        llama.engine.tick()
    before = reading(llama.session())
    answered: list[Any] = []
    llama.engine.submit(request_, ME, lambda reply: answered.extend([reply, reading(llama.session())]))
    while not answered:
        llama.engine.tick()
    failed, after = answered
    assert isinstance(failed, Failed), failed
    assert issubclass(BY_CODE[failed.code], DjinnError)
    assert failed.code != "DjinnError", failed
    assert failed.message.endswith(".")
    assert "\n" not in failed.message
    assert same(after, before)
    llama.settle()
    if state == "running":
        assert type(ends[0]).__name__ == "Finished"
