"""A sweep, paths and an attribution are spread over two engine processes, of which one is killed on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import await_end
from djinn_jupyter.errors import UsageError

pytestmark = pytest.mark.processes
CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Spain": "Madrid"}
PAIRS = [(f"The capital of {a} is", f"The capital of {b} is") for a in CAPITALS for b in CAPITALS if a != b]


def test_a_killed_engine_leaves_its_pairs_to_the_other(runtime: Path) -> None:
    one, other = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)
    asked: dict[str, Any] = {"pairs": PAIRS, "site": "resid_post", "metric": "logit(' Paris')", "mode": "exact"}
    asked["over"] = ("layer", "position")
    killed: list[int] = []

    def kill(grid: dj.Grid, done: int, total: int) -> None:
        assert other.entry is not None
        if not killed:
            killed.append(other.entry.pid)
            os.kill(other.entry.pid, signal.SIGKILL)

    spread = dj.sweep(one, beside=[other], **asked, on_progress=kill)
    assert killed
    assert other.entry is not None
    await_end(other.entry)
    assert spread.is_whole
    assert "An engine was lost, and another computed its pair" in " ".join(spread.notes)
    assert spread.values.tobytes() == dj.sweep(one, **asked).values.tobytes()
    assert one.sessions() == ()


def _path(engine: dj.RemoteEngine, **given: Any) -> dj.Grid:
    clean, corrupted = map(list, zip(*PAIRS, strict=True))
    asked = {"metric": "logit(' Paris')", "mode": "exact", "over": ("layer", "head")}
    return dj.path(engine, "z -> logits", clean=clean, corrupted=corrupted, **asked, **given)


def _attribution(engine: dj.RemoteEngine, **given: Any) -> dj.Grid:
    asked: dict[str, Any] = {"pairs": PAIRS, "site": "z", "over": ("layer", "head"), "metric": "logit(' Paris')"}
    return dj.attribute(engine, **asked, top=3, **given)


@pytest.mark.parametrize("measure", [_path, _attribution])
def test_paths_and_attributions_are_spread_likewise(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, measure: Callable[..., dj.Grid]
) -> None:
    one, other = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)
    assert other.entry is not None
    pid, asked = other.entry.pid, list[object]()
    follow = other.channel.follow

    def follow_and_kill(session: str, request: Any, heard: Any) -> Any:
        """Kill the engine before it can answer for its second pair: it hears of it only when it stands still."""
        asked.append(request)
        second = len(asked) == 2
        if second:
            os.kill(pid, signal.SIGSTOP)
        following = follow(session, request, heard)
        if second:
            os.kill(pid, signal.SIGKILL)
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


def test_a_path_between_sessions_is_at_one_engine_alone(runtime: Path) -> None:
    one, other = dj.load("demo", threads=1), dj.load("demo", copy=2, threads=1)
    session = one.session("here")
    session.run("The capital of France is", max_new_tokens=0)
    with pytest.raises(UsageError, match="session"):
        dj.path(
            one,
            "z -> logits",
            clean=[session, PAIRS[1][0]],
            corrupted=[PAIRS[0][1], PAIRS[1][1]],
            metric="logit(' Paris')",
            beside=[other],
        )
    session.close()
