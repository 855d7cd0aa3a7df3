from __future__ import annotations

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished, Interrupted, Paused
from djinn_jupyter.errors import IllegalMove, SessionHeld, SessionsWouldSuffer, UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import TokenSampled
from tests.client.near import Near
from tests.process.fake_engine import STOP_TOKEN


@pytest.fixture
def near() -> Near:
    return Near()


def test_a_run_that_reaches_its_end(near: Near) -> None:
    session = near.kernel().session("paris")
    done = session.run([5], max_new_tokens=3)
    assert isinstance(done, Finished)
    assert (done.tokens, done.text, done.reason) == ((1, 2, 3), " 1 2 3", "length")
    assert done.logits.dtype == np.float32
    assert done.logits.tolist() == [0.5, 2.0]
    assert repr(done) == "Finished (length): 3 new tokens ' 1 2 3'"


def test_a_run_that_stops_inside(near: Near) -> None:
    session = near.kernel().session("paris")
    stop = session.run([5, STOP_TOKEN])
    assert isinstance(stop, Paused)
    assert (stop.site, stop.layer, stop.step) == ("resid_post.4", 5, 0)
    assert stop.hidden.tolist() == [[1.0, 0.0]]
    assert repr(stop) == (
        "Paused at resid_post.4 (breakpoint): session paris, step 0, positions 0..1, 5 of 8 layers run, after ' 5 99'"
    )
    assert repr(session.stop) == repr(stop)


def test_the_logits_of_two_runs_can_be_compared_afterwards(near: Near) -> None:
    session = near.kernel().session("paris")
    first = session.run([5], max_new_tokens=3)
    second = session.run([5], max_new_tokens=3)
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    session.close()
    assert first.logits.tolist() == second.logits.tolist() == [0.5, 2.0]


def test_logits_that_nobody_can_ask_for_any_more_are_not_fetched(near: Near) -> None:
    session = near.kernel().session("paris")
    for _ in range(3):
        session.run([5], max_new_tokens=1)
    assert not [r for r in near.channels[0].requests if isinstance(r, ask.ReadLogits)]


def test_the_value_of_a_stop_is_fetched_once_and_again_after_an_edit(near: Near) -> None:
    engine = near.kernel()
    session = engine.session("paris")
    stop = session.run([STOP_TOKEN])
    assert stop.hidden is stop.hidden
    inspected = [r for r in near.channels[0].requests if isinstance(r, ask.Inspect)]
    assert len(inspected) == 1
    session.edit(dj.scale(0.5))
    assert stop.hidden.tolist() == [[1.0, 1.0]]


def test_a_past_stop_does_not_show_the_value_of_the_present_one(near: Near) -> None:
    session = near.kernel().session("paris")
    past = session.run([STOP_TOKEN])
    session.run([1, STOP_TOKEN])
    with pytest.raises(IllegalMove, match="moved on"):
        _ = past.hidden
    with pytest.raises(IllegalMove):
        past.lens()


def test_tokens_are_streamed_in_the_callers_thread(near: Near) -> None:
    session = near.kernel().session("paris")
    heard: list[TokenSampled] = []
    done = session.run([5], max_new_tokens=4, on_token=heard.append)
    assert tuple(event.token for event in heard) == done.tokens


@pytest.mark.parametrize("prompt", [[], [10**6]])
def test_a_streamed_run_that_is_refused_raises_its_error(engine: RemoteEngine, prompt: list[int]) -> None:
    with pytest.raises(UsageError):
        engine.session("a").run(prompt, on_token=print)


def test_a_streamed_run_whose_session_is_closed_raises_its_error(engine: RemoteEngine) -> None:
    session = engine.session("a")

    def close(event: TokenSampled) -> None:
        engine.reach("a").close(force=True)

    with pytest.raises(IllegalMove, match="was closed"):
        session.run([9, 8, 7], max_new_tokens=50, ignore_eos=True, on_token=close)


def test_an_interrupt_pauses_the_run_and_says_where_it_stands(near: Near) -> None:
    session = near.kernel().session("paris")
    near.before_tick = [KeyboardInterrupt(), None]
    with pytest.raises(Interrupted) as caught:
        session.run([5], max_new_tokens=1_000_000)
    assert isinstance(caught.value.stop, Paused)
    assert caught.value.stop.reason == "interrupt"
    assert "is intact" in str(caught.value)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert session.stop.reason == "interrupt"


def test_an_interrupt_while_tokens_stream_pauses_too(near: Near) -> None:
    session = near.kernel().session("paris")

    def break_in(event: TokenSampled) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        session.run([5], max_new_tokens=50, on_token=break_in)
    assert caught.value.stop.session is session


def test_failures_are_raised_as_what_they_are(near: Near) -> None:
    session = near.kernel().session("paris")
    session.close()
    with pytest.raises(UnknownSession):
        session.describe()
    with pytest.raises(IllegalMove):
        near.kernel().session("rome").resume()


def test_a_session_of_another_kernel_needs_join(near: Near) -> None:
    near.kernel("kernel-1").session("paris")
    other = near.kernel("kernel-2")
    with pytest.raises(SessionHeld):
        other.session("paris")
    assert other.session("paris", join=True).name == "paris"
    assert [one.holder for one in other.sessions()] == ["kernel-1"]


def test_stop_needs_force_when_others_would_suffer(near: Near) -> None:
    near.kernel("kernel-1").session("paris")
    other = near.kernel("kernel-2")
    with pytest.raises(SessionsWouldSuffer, match="paris"):
        other.stop()
    assert not near.stopped
    assert other.stop(force=True) == ("paris",)
    assert near.stopped


def test_what_would_not_cross_the_wire_does_not_pass(near: Near) -> None:
    session = near.kernel().session("paris")
    with pytest.raises(UsageError, match="site: expected str of length >= 1"):
        session.breakpoint("")
    with pytest.raises(UsageError, match="max_new_tokens"):
        session.run([1], max_new_tokens=-1)


def test_a_session_without_a_notebook_needs_a_name(near: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    with pytest.raises(UsageError, match="name"):
        near.kernel().session()


def test_a_session_is_named_by_its_notebook_and_shown_by_its_stem(near: Near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "work/first look.ipynb")
    session = near.kernel().session()
    assert (session.name, session.label) == ("work/first look.ipynb", "first look")
    assert repr(session) == "Session first look of fake"


def test_positions_and_edits_cross_as_they_are_meant(near: Near) -> None:
    session = near.kernel().session("paris")
    session.run([1, 2, 3, 4, STOP_TOKEN])
    for positions in (slice(1, None), "1:", [1, 2, 3, 4], slice(-4, None), np.arange(1, 5)):
        assert session.edit(dj.zero(), positions=positions).positions == (1, 2, 3, 4)
    assert session.edit(2.5, positions=-1).positions == (-1,)
    assert session.edit(np.zeros(2, np.float32)).edit == "Set"
