"""Any request, of any session, with any values: it gets one reply, and a bystander's bits are what they always are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from djinn_jupyter.errors import DjinnError
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.crowd import STATES, Crowd, State, is_refusal
from tests.engine.desk import desk_of
from tests.wire import values
from tests.wire.values import Quality

KINDS: tuple[type, ...] = get_args(ask.Request)
OF_A_SESSION = [kind for kind in KINDS if issubclass(kind, ask.SessionRequest)]


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    desk = desk_of("llama")
    yield Crowd.around(desk)
    desk.close_all()


def made(kind: type, fields: dict[str, Any], name: str) -> Any:
    """The request; None where the class itself refuses the fields."""
    try:
        return kind(**fields, **({"session": name} if issubclass(kind, ask.SessionRequest) else {}))
    except (DjinnError, TypeError):
        return None


def crosses(request: Any) -> bool:
    """Whether a client could have sent it."""
    try:
        codec.encode_checked(1, request)
    except DjinnError:
        return False
    return True


@pytest.mark.parametrize("kind", OF_A_SESSION, ids=lambda kind: kind.__name__)
def test_a_session_that_is_not_there_is_named_and_nobody_else_hears_of_it(crowd: Crowd, kind: type) -> None:
    for fields in values.requests(kind, "ordinary"):
        reply = crowd.ask(made(kind, fields, "nobody"), "nobody", "missing")
        if kind is ask.Open:
            crowd.leave("nobody")
            continue
        assert is_refusal(reply), reply
        if kind not in (ask.Run, ask.RestoreCheckpoint):  # whose text and file are looked at first
            assert reply.code == "UnknownSession", reply
    crowd.goes_on()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", ["ordinary", "extreme", "wrong"])
def test_any_request_gets_one_reply_and_leaves_the_others_alone(crowd: Crowd, kind: type, quality: Quality) -> None:
    for state, fields in _cases(kind, quality):
        crowd.bring("a", state)
        request = made(kind, fields, "a")
        if request is None:
            continue
        reply = crowd.ask(request, "a", state)
        crowd.goes_on()
        if isinstance(reply, Failed) and crosses(request):
            assert is_refusal(reply), (state, request, reply)
    crowd.alone()
    crowd.desk.settle()
    assert crowd.desk.engine.faults.count == 0, crowd.desk.engine.faults.last


def _cases(kind: type, quality: Quality) -> Iterator[tuple[State, dict[str, Any]]]:
    """What is ordinary in every state; the others in one after the other."""
    every = values.requests(kind, quality)
    if not issubclass(kind, ask.SessionRequest):
        yield from zip(itertools.repeat(STATES[-1]), every)
    elif quality == "ordinary":
        yield from itertools.product(STATES, every[:4])
    else:
        yield from zip(itertools.cycle(STATES), every)
