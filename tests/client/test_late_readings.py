"""What is read late: a result whose session another handle has moved since says so, and reads no other run's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.errors import IllegalMove


def test_logits_are_those_of_their_own_run_or_are_refused(engine: RemoteEngine) -> None:
    first, second = [engine.session("again", fresh=True).run([5, 6 + i], max_new_tokens=1) for i in range(2)]
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    with pytest.raises(IllegalMove, match="'again' has moved on: the logits of this run were not fetched"):
        first.fetch_logits()
    assert int(second.logits.argmax()) == second.top[0].token


def test_samples_of_an_earlier_batch_are_not_read_from_rows_of_another_handle(engine: RemoteEngine) -> None:
    earlier = engine.session("rows").run([5, 6], samples=2, temperature=1.0, max_new_tokens=1)
    engine.session("rows").run([5, 7], samples=2, temperature=1.0, max_new_tokens=1)
    with pytest.raises(IllegalMove, match="has moved on"):
        earlier[1].logits  # noqa: B018


@pytest.mark.parametrize("read", [lambda stop: stop.hidden, lambda stop: stop.lens(1), lambda stop: stop.effect(1)])
def test_values_of_a_stop_are_its_own_or_are_refused(engine: RemoteEngine, read: Callable[[Paused], object]) -> None:
    one, other = engine.session("stopped", fresh=True), engine.session("stopped")
    one.breakpoint("resid_post.1")
    stop = one.run([5, 6], max_new_tokens=1)
    assert isinstance(stop, Paused)
    read(stop)
    other.run([5, 7], max_new_tokens=1)
    with pytest.raises(IllegalMove, match=r"'stopped' has moved on from resid_post\.1 \(step 0\)"):
        read(one_at(stop))


def one_at(stop: Paused) -> Paused:
    """Return the same stop with nothing fetched yet."""
    return Paused(stop.session, stop.reply, stop.session.moves)
