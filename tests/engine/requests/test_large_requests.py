"""No request costs more than its size says: with any list as long as its type lets it be, no step of its work takes
much longer than to read the request. In CPU seconds of the thread, which the work of others does not lengthen."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.requests import bounds
from djinn_jupyter.engine.requests.bounds import require_few_tokens
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.engine.edges import LayerEnds
from djinn_jupyter.methods.circuits.engine.patching import EdgeNames
from djinn_jupyter.methods.circuits.request import MOST_EDGES, AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import CheckCollect, Collect
from djinn_jupyter.methods.sweep.request import CheckSweep, Sweep
from djinn_jupyter.wire import codec
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Failed
from tests.engine.cases import KINDS
from tests.engine.crowd import is_refusal
from tests.engine.desk import ME, Desk, build_desk, desk_of, tokens
from tests.families import build
from tests.wire import largest

TIMES = 4  # the seconds that it takes to read the request's bytes
MORE = 0.1  # CPU seconds: a pass of the model, or a layer of a longer line; see _seconds_of_a_pass
BATCH = 8192  # prompts of one token that a collection computes together
STEPS = 12
SOME = 8192  # entries
FLOOR = 0.02  # CPU seconds: steps that do not depend on the entries
LINES: dict[str, Any] = {"corrupted": tokens(6), "clean": tokens(6, seed=2), "prompts": (tokens(6),)}
SWEEP: dict[str, Any] = {**LINES, "site": "resid_post", "over": ("layer", "position")}
BESIDE: dict[type, dict[str, Any]] = {
    Sweep: SWEEP,
    CheckSweep: SWEEP,
    AttributeEdges: {**LINES, "metric": "logit(3)", "method": "exact"},
    RunCircuits: {**LINES, "metric": "logit(3)"},
    Collect: {**LINES, "sites": ("resid_post.1",)},
    CheckCollect: {**LINES, "sites": ("resid_post.1",)},
}
LARGE = [(kind, path) for kind in KINDS for path in largest.lists_of(kind)]
COMPUTED = {"tokens", "corrupted", "clean", "line", "lines[]", "prompts[]"}  # by passes, which see all of it
WALKED = [(kind, path) for kind, path in LARGE if path not in COMPUTED]


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """An engine, while nothing that was there before is looked through for garbage: in a long run that takes longer."""
    gc.collect()
    gc.freeze()
    desk = desk_of("llama")
    yield desk
    desk.close_all()
    gc.unfreeze()


@pytest.mark.parametrize(("kind", "path"), LARGE, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_no_step_of_a_large_request_takes_longer_than_its_bytes(desk: Desk, kind: type, path: str) -> None:
    session = "empty" if kind in BESIDE else "stopped"  # in which it is carried out
    for request in largest.requests(kind, path, session=session, **BESIDE.get(kind, LINES)):
        _bring(desk)
        read, steps = _seconds_to_read(request), _steps_of(desk, request)
        more = MORE if max(steps) <= TIMES * read + MORE else _seconds_of_a_pass(desk)
        assert max(steps) <= TIMES * read + more, (read, steps, more)


@pytest.fixture(scope="module")
def long(desk: Desk) -> Iterator[Desk]:
    """An engine with so many positions that no list below is refused for their number."""
    model = build("llama")
    model.config.max_position_embeddings = 8 * SOME
    desk = build_desk(model)
    yield desk
    desk.close_all()


@pytest.mark.parametrize(("kind", "path"), WALKED, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_list_four_times_as_long_takes_no_more_than_eight_times_as_long(long: Desk, kind: type, path: str) -> None:
    """A walk for each entry takes sixteen times as long. The engine's CPU seconds, in one of three tries."""
    fields = {**BESIDE.get(kind, LINES), "session": "empty" if kind in BESIDE else "stopped"}
    few, many = (largest.requests(kind, path, most=SOME * times, **fields) for times in (1, 4))
    for of_few, of_many in zip(few, many, strict=True):
        tries = ((_seconds(long, of_few), _seconds(long, of_many)) for _ in range(3))
        assert any(longer <= 8 * shorter + FLOOR for shorter, longer in tries)


def _seconds(desk: Desk, request: Any) -> float:
    _bring(desk)
    return sum(_steps_of(desk, request))


def _bring(desk: Desk) -> None:
    desk.close(*[name for name in ("stopped", "empty", "other", "another name") if name in desk.engine.sessions])
    desk.open("empty")
    desk.open("stopped")
    desk.stop_at(3, "step == 0", "stopped")
    desk.run(tokens(10), 4, "stopped")


def _seconds_to_read(request: Any) -> float:
    frames = codec.encode(1, request)
    begun = time.thread_time()
    codec.decode_request(frames)
    return time.thread_time() - begun


def _seconds_of_a_pass(desk: Desk) -> float:
    """Return the CPU seconds of a plain pass over a batch, now: on a slow or a loaded machine more than MORE."""
    with torch.inference_mode():
        begun = time.thread_time()
        desk.engine.forward.model(torch.zeros(BATCH, 1, dtype=torch.int64), use_cache=False)
        return time.thread_time() - begun


def _steps_of(desk: Desk, request: Any) -> list[float]:
    """Return the CPU seconds of taking the request, and of each of the first steps of its work."""
    replies: list[Any] = []
    begun = time.thread_time()
    desk.engine.accept(request, ME, replies.append)
    seconds = [time.thread_time() - begun]
    for _ in range(STEPS):
        if replies:
            break
        begun = time.thread_time()
        desk.engine.tick()
        seconds.append(time.thread_time() - begun)
        desk.engine.mailbox.wait(0.01)
    assert not replies or not isinstance(replies[0], Failed) or is_refusal(replies[0]), replies[0].message
    return seconds


NAMES = EdgeNames(writers=("embed", "mlp_out.0"), readers=("mlp_in.0", "logits"), before=(1, 2))


def test_an_edge_that_is_named_again_is_one_edge_and_more_than_there_are_are_refused_unread() -> None:
    assert _ended(NAMES.checked([(0, 0), (1, 1), (0, 0)])) == ((0, 0), (1, 1))
    with pytest.raises(UsageError, match="has 3 edges, not 4: name each once"):
        _ended(NAMES.checked([(0, 0)] * 4))


def _ended(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_no_edge_is_beyond_the_bound_of_their_number() -> None:
    for family in ("llama", "gpt2"):
        engine = desk_of(family).engine
        layers = [LayerEnds.of(engine.forward, layer) for layer in range(engine.forward.layers)]
        assert sum(EdgeNames.of(layers).before) <= engine.extents["edges"] < MOST_EDGES


@pytest.mark.parametrize("bound", ["ANSWERED_ARRAYS", "ANSWERED_VALUES"])
def test_a_watch_with_more_than_one_answer_takes_is_refused_in_a_sentence(
    desk: Desk, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bring(desk)
    desk.ask(ask.Watch(session="empty", site="resid_post.1"))
    desk.run(tokens(10), 4, "empty")
    watched = desk.ask(ask.ReadWatch(session="empty", site="resid_post.1"))
    passes, size = len(watched.values), watched.watch.bytes_held
    monkeypatch.setattr(bounds, bound, {"ANSWERED_ARRAYS": passes, "ANSWERED_VALUES": size}[bound])
    assert desk.ask(ask.ReadWatch(session="empty", site="resid_post.1")).watch == watched.watch
    monkeypatch.setattr(bounds, bound, 1)
    with pytest.raises(UsageError, match=rf"The watch of resid_post.1 has recorded .* in {passes} passes, more than"):
        desk.ask(ask.ReadWatch(session="empty", site="resid_post.1"))


def test_a_lens_tells_a_bounded_number_of_tokens_however_many_positions_it_reads() -> None:
    require_few_tokens(2**18, 1)
    with pytest.raises(UsageError, match=r"1,000 tokens at each of 2,000 positions are more than the 262,144"):
        require_few_tokens(2000, 1000)
