"""A sweep, paths and an attribution are spread over two engine processes, of which one is killed on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import await_end
from tests.engines import own_registry

pytestmark = pytest.mark.processes
CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid"}
PAIRS = [(f"The capital of {a} is", f"The capital of {b} is") for a in CAPITALS for b in CAPITALS if a != b]
METRIC = "logit(' Paris')"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dj.RemoteEngine]:
    with own_registry(tmp_path_factory.mktemp("own")):
        yield dj.load("demo", threads=1)


def _sweep(engine: dj.RemoteEngine, **given: Any) -> dj.Grid:
    over = ("layer", "position")
    return dj.sweep(engine, pairs=PAIRS, site="resid_post", metric=METRIC, mode="exact", over=over, **given)


def _path(engine: dj.RemoteEngine, **given: Any) -> dj.Grid:
    clean, corrupted = map(list, zip(*PAIRS, strict=True))
    asked = {"metric": METRIC, "mode": "exact", "over": ("layer", "head")}
    return dj.path(engine, "z -> logits", clean=clean, corrupted=corrupted, **asked, **given)


def _attribution(engine: dj.RemoteEngine, **given: Any) -> dj.Grid:
    return dj.attribute(engine, pairs=PAIRS, site="z", over=("layer", "head"), metric=METRIC, top=3, **given)


@pytest.mark.parametrize("measure", [_sweep, _path, _attribution])
def test_a_killed_engine_leaves_its_pairs_to_the_other(
    one: dj.RemoteEngine, monkeypatch: pytest.MonkeyPatch, measure: Callable[..., dj.Grid]
) -> None:
    other, asked = dj.load("demo", copy=2, threads=1), list[object]()
    follow = other.channel.follow

    def follow_and_kill(session: str, request: Any, heard: Any) -> Any:
        """Kill the engine before it can answer for its second pair: it hears of it only when it stands still."""
        asked.append(request)
        second = len(asked) == 2
        if second:
            os.kill(other.entry.pid, signal.SIGSTOP)
        following = follow(session, request, heard)
        if second:
            os.kill(other.entry.pid, signal.SIGKILL)
        return following

    monkeypatch.setattr(other.channel, "follow", follow_and_kill)
    spread = measure(one, beside=[other])
    await_end(other.entry)
    assert len(asked) == 2
    assert spread.is_whole
    assert "An engine was lost, and another computed its pair" in " ".join(spread.notes)
    alone = measure(one)
    assert spread.values.tobytes() == alone.values.tobytes()
    if measure is _attribution:
        assert spread.confirmed.tobytes() == alone.confirmed.tobytes()
    assert one.sessions() == ()
