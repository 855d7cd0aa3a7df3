"""Any request, where the model is not whole in one place: its layers stream, or two ranks compute each together. It
gets one reply, and a bystander's bits are what they always are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import KINDS, QUALITIES, STATES, Case
from tests.engine.crowd import Crowd, is_refusal
from tests.engine.memory.weights.streaming import streamed_desk
from tests.engine.parallel.ranked import saved, split_desk
from tests.wire import values

OF_EACH = 1  # request of a kind and quality, in a state of its own


@pytest.fixture(
    scope="module", params=["streamed", pytest.param("split", marks=[pytest.mark.processes, pytest.mark.slow])]
)
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    if request.param == "streamed":
        yield Crowd.around(streamed_desk("llama"))
        return
    with split_desk(saved("llama", tmp_path_factory.mktemp("model"), layers=8), 2) as desk:
        yield Crowd.around(desk)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_any_request_gets_one_reply_and_leaves_the_others_alone(crowd: Crowd, kind: type) -> None:
    chance = random.Random(kind.__name__)
    for quality in QUALITIES * OF_EACH:
        every = values.requests(kind, quality)
        if not every:
            continue
        state, case = chance.choice(STATES), Case(kind, chance.choice(every), "a")
        crowd.bring("a", state)
        if case.request is None:
            continue
        reply = crowd.ask(case.request, "a", state)
        assert not isinstance(reply, Failed) or is_refusal(reply), (state, case, reply)
        crowd.goes_on()
    crowd.alone()
    crowd.desk.settle()
    assert crowd.desk.engine.faults.count == 0, crowd.desk.engine.faults.last
