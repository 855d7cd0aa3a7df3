"""Any request, of any session, with any values: it gets one reply, and a bystander's bits are what they always are."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed, MoveSettled
from tests.engine.cases import KINDS, OF_A_SESSION, QUALITIES, Case, State, cases
from tests.engine.crowd import Crowd, is_refusal
from tests.engine.desk import desk_of
from tests.wire import values
from tests.wire.values import Quality

pytestmark = pytest.mark.drawn

MOST = 12  # cases of one request and quality in the usual run: edits and sweeps have up to 310


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    desk = desk_of("llama")
    yield Crowd.around(desk)
    desk.close_all()


@pytest.mark.parametrize("kind", OF_A_SESSION, ids=lambda kind: kind.__name__)
def test_a_session_that_is_not_there_is_named_and_nobody_else_hears_of_it(crowd: Crowd, kind: type) -> None:
    for fields in values.requests(kind, "ordinary"):
        reply = crowd.ask(Case(kind, fields, "nobody").request, "nobody", "missing")
        if kind is ask.Open:
            crowd.leave("nobody")
            continue
        if kind is ask.SettleMove:
            assert reply == MoveSettled(stayed=False)
            continue
        assert is_refusal(reply), reply
        if kind not in (ask.Run, ask.RestoreCheckpoint, ask.TakeIn):  # whose text and file are looked at first
            assert reply.code == "UnknownSession", reply
    crowd.goes_on()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", QUALITIES)
def test_any_request_gets_one_reply_and_leaves_the_others_alone(crowd: Crowd, kind: type, quality: Quality) -> None:
    every = list(cases(kind, quality, "a"))
    chosen = random.Random(kind.__name__).sample(range(len(every)), min(MOST, len(every)))
    _each_is_answered(crowd, (every[number] for number in sorted(chosen)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", QUALITIES)
def test_so_does_every_case_of_it(crowd: Crowd, kind: type, quality: Quality) -> None:
    _each_is_answered(crowd, cases(kind, quality, "a"))


def _each_is_answered(crowd: Crowd, those: Iterable[tuple[State, Case]]) -> None:
    for state, case in those:
        crowd.bring("a", state)
        if case.request is None:
            continue
        reply = crowd.ask(case.request, "a", state)
        crowd.goes_on()
        if isinstance(reply, Failed):
            assert is_refusal(reply), (state, case, reply)
    crowd.alone()
    crowd.desk.settle()
    assert crowd.desk.engine.faults.count == 0, crowd.desk.engine.faults.last


WRONG = (
    (ask.Fork(session="a", name=["twin"]), "name: expected str, got array."),  # type: ignore[arg-type]
    (ask.Open(session=7), "session: expected str, got int."),  # type: ignore[arg-type]
    (ask.Run(session="a", tokens=(1, -1)), "tokens: expected int >= 0."),
    (ask.Step(session="a", count=1.5), "count: expected int, got float."),  # type: ignore[arg-type]
    (ask.ApplyEdit(session="a", edit={"factor": 2}), "edit"),  # type: ignore[arg-type]
    (ask.Run(session="a", tokens=(1,), mode="slow"), "mode: 'slow' is none of its values."),  # type: ignore[arg-type]
    ("close everything", "Not a message of this protocol"),
)


@pytest.mark.parametrize(("request_", "sentence"), WRONG, ids=lambda one: type(one).__name__)
def test_a_request_of_this_process_with_values_of_wrong_types_is_refused_and_loses_nothing(
    crowd: Crowd, request_: Any, sentence: str
) -> None:
    crowd.bring("a", "stopped")
    pages = sum(slab.pages_in_use for slab in crowd.desk.engine.slabs)
    reply = crowd.ask(request_, "a", "stopped")
    assert is_refusal(reply), reply
    assert (reply.code, sentence in reply.message) == ("UsageError", True), reply.message
    crowd.desk.settle()
    assert sum(slab.pages_in_use for slab in crowd.desk.engine.slabs) == pages
    assert crowd.desk.engine.faults.count == 0
    crowd.goes_on()
