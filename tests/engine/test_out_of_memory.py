"""Memory that the device refuses in the midst of a pass: the session stands at its last committed step, the engine and
all other sessions go on, and the next request has the bits that it would have had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import OutOfDeviceMemory
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Finished, SessionFailed
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.plain import generate, plain_of

PROMPT = tokens(20)
REFUSALS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "a library of CUDA": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
}
FAMILIES = ("llama", "gemma3_text", "mamba2", "jamba")


@contextmanager
def refused(desk: Desk, error: Exception, *, layer: int, passes: int = 0, rows: int | None = None) -> Iterator[None]:
    """Refuse memory to a layer after so many passes (of so many tokens), when it has written its rows and states."""
    left = [passes]

    def fail(module: Any, given: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        left[0] -= rows in (None, hidden.shape[1])
        if left[0] < 0:
            raise error

    handle = desk.engine.anatomy.layers[layer].register_forward_hook(fail)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def refusal(family: str) -> Exception:
    return [*REFUSALS.values(), REFUSALS["cpu"]][FAMILIES.index(family)]


@pytest.fixture
def desk(family: str) -> Iterator[Desk]:
    made = desk_of(family)
    made.open()
    made.open("b")
    made.events.clear()
    yield made
    made.close_all()


def test_in_a_decode_step_the_line_stays_as_far_as_it_came(desk: Desk, family: str, refusal: Exception) -> None:
    whole = generate(plain_of(family), PROMPT, 8)
    desk.run(PROMPT, 2, "b")
    with (
        refused(desk, refusal, layer=5, passes=4),
        pytest.raises(OutOfDeviceMemory, match=r"no memory left for this pass over 1 tokens.*last committed step"),
    ):
        desk.run(PROMPT, 8)
    session = desk.session()
    assert (session.state, session.frame) == ("idle", None)
    made = tuple(session.tokens[len(PROMPT) :])
    assert whole.tokens[: len(made)] == made
    assert len(made) == 4
    assert [event.code for event in desk.events if isinstance(event, SessionFailed)] == ["OutOfDeviceMemory"]
    desk.settle()
    assert desk.outcome(desk.run((), 8 - len(made), extend=True)).logits.equal(whole.logits)
    assert tuple(session.tokens[len(PROMPT) :]) == whole.tokens
    assert desk.run((), 3, "b", extend=True).tokens == generate(plain_of(family), PROMPT, 5).tokens[2:]


def test_in_a_prompt_nothing_is_committed_and_the_next_one_runs_as_ever(desk: Desk, family: str) -> None:
    with refused(desk, REFUSALS["cpu"], layer=5), pytest.raises(OutOfDeviceMemory):
        desk.run(PROMPT, 4)
    assert desk.session().cache.length == 0
    desk.settle()
    assert desk.outcome(desk.run(PROMPT, 4)) == generate(plain_of(family), PROMPT, 4)


def test_at_a_resume_the_stop_can_be_gone_back_to(desk: Desk, family: str) -> None:
    desk.stop_at(3, when="step == 2")
    desk.run(PROMPT, 4)
    stopped = desk.value()
    with refused(desk, REFUSALS["cpu"], layer=5), pytest.raises(OutOfDeviceMemory):
        desk.resume()
    assert desk.session().state == "idle"
    desk.back()
    assert desk.value().equal(stopped)
    ended = desk.resume()
    assert isinstance(ended, Finished)
    assert ended.tokens == generate(plain_of(family), PROMPT, 4).tokens


def test_while_another_runs_that_one_ends_as_ever(desk: Desk, family: str) -> None:
    other: list[Any] = []
    desk.post(ask.Run(session="b", tokens=PROMPT, max_new_tokens=4, ignore_eos=True), other)
    while len(desk.session("b").tokens) <= len(PROMPT):
        desk.engine.tick()
    mine: list[Any] = []
    with refused(desk, REFUSALS["cpu"], layer=7, rows=70):
        desk.post(ask.Run(session="a", tokens=tokens(70, seed=2), max_new_tokens=4, ignore_eos=True), mine)
        while not (mine and other):
            desk.engine.tick()
    assert mine[0].code == "OutOfDeviceMemory"
    assert desk.outcome(other[0], "b") == generate(plain_of(family), PROMPT, 4)
