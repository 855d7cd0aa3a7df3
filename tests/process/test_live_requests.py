"""The cases of `tests.engine.requests.test_any_request` and its interleavings, over the sockets of a live engine: each
gets one reply, and a bystander's bits are what they always are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import djinn_jupyter as dj
from djinn_evaluation.machine import computed_on
from djinn_jupyter.api import loading
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.link.registry import running_engines
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import KINDS, QUALITIES, STEPS, Case, State, Step, cases, some_cases
from tests.engine.crowd import is_refusal
from tests.families import build
from tests.process.live_crowd import LiveCrowd
from tests.wire.values import Quality

pytestmark = pytest.mark.processes
MANY = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a live engine is never twice the same: nothing to shrink
)
FEW = settings(MANY, max_examples=25)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCrowd]:
    model = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        crowd = LiveCrowd(dj.load(model, dtype="float32", device=computed_on(), threads=1))
        yield crowd
        crowd.close()
        for entry in running_engines():
            os.kill(entry.pid, signal.SIGTERM)
            await_end(entry)
        loading._channels.close()


def _each_is_answered(crowd: LiveCrowd, those: Iterator[tuple[State, Case]]) -> None:
    for state, case in those:
        if case.ends_the_engine:
            continue
        crowd.bring(case.name, state)
        reply = crowd.ask(case, state)
        assert not isinstance(reply, Failed) or is_refusal(reply), (state, case, reply)
        crowd.goes_on()
    crowd.alone()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", QUALITIES)
def test_any_request_over_a_socket_gets_one_reply_and_leaves_the_others_alone(
    crowd: LiveCrowd, kind: type, quality: Quality
) -> None:
    _each_is_answered(crowd, some_cases(kind, quality, "a", of_each_state=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("quality", QUALITIES)
def test_every_value_over_a_socket_gets_one_reply_and_leaves_the_others_alone(
    crowd: LiveCrowd, kind: type, quality: Quality
) -> None:
    _each_is_answered(crowd, cases(kind, quality, "a"))


@FEW
@given(steps=STEPS)
def test_eight_connections_ask_anything_and_a_bystander_goes_on_bit_for_bit(
    crowd: LiveCrowd, steps: list[Step]
) -> None:
    crowd.interleave(steps)
    crowd.goes_on()
    crowd.alone()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(steps=STEPS)
def test_eight_connections_ask_anything_for_long(crowd: LiveCrowd, steps: list[Step]) -> None:
    crowd.interleave(steps)
    crowd.goes_on()
    crowd.alone()
