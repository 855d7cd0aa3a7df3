"""An interrupt at any moment of a sweep, a collection or a measurement: one sentence; nothing stays in the engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import MeasurementEnded
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import ME, Desk

LINE, OTHER = (9, 8, 7, 21), (9, 8, 7, 31)
Work = Callable[[RemoteEngine, Path], Any]
SWEEP: dict[str, Any] = {"site": "resid_post", "over": "layer", "metric": "logit(17)", "mode": "exact"}
WORKS: dict[str, Work] = {
    "sweep": lambda engine, folder: dj.sweep(engine, clean=LINE, corrupted=OTHER, **SWEEP),
    "pairs": lambda engine, folder: dj.sweep(engine, clean=[LINE] * 2, corrupted=[OTHER] * 2, **SWEEP),
    "collection": lambda engine, folder: engine.collect([LINE, OTHER], "z.0", to=folder, shard_prompts=1),
    "loss": lambda engine, folder: engine.loss([LINE, OTHER]),
}


def interrupted_at(moment: int, engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Interrupt the caller when it waits for the `moment`-th time. Return whether that moment has come."""
    channel: Any = engine.channel
    pump, moments = channel._pump, itertools.count(1)
    came = False

    def wait() -> None:
        nonlocal came
        if next(moments) == moment:
            came = True
            raise KeyboardInterrupt
        pump()

    monkeypatch.setattr(channel, "_pump", wait)
    return lambda: came


@pytest.mark.parametrize("work", WORKS)
def test_an_interrupt_at_any_moment_is_one_sentence_and_ends_the_work(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: str
) -> None:
    said: set[str] = set()
    notes: set[str] = set()
    for moment in itertools.count(1):
        with monkeypatch.context() as patch:
            came = interrupted_at(moment, engine, patch)
            try:
                found = WORKS[work](engine, tmp_path / str(moment))
            except dj.WorkInterrupted as broken:
                said.add(str(broken).replace(str(moment), "N"))
                notes |= {broken.kept.notes[-1]} if isinstance(broken.kept, dj.Grid) else set()
            else:
                assert not came(), found
        desk.settle()
        assert not desk.engine.sessions, moment
        if not came():
            break
    assert said
    assert all("interrupted, and the engine told to end it" in one for one in said), said
    assert all("it was interrupted" in one for one in notes), notes
    assert bool(notes) == (work in ("sweep", "pairs"))


WITH_TEXTS: dict[str, Work] = {
    "sweep": lambda engine, folder: dj.sweep(engine, clean="the cat", corrupted="the cat", **SWEEP),
    "collection": lambda engine, folder: engine.collect(["the cat"], "z.0", to=folder),
    "loss": lambda engine, folder: engine.loss(["the cat"]),
}


@pytest.mark.parametrize("work", WITH_TEXTS)
def test_an_interrupt_while_a_text_becomes_tokens_is_one_too(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: str
) -> None:
    interrupted_at(1, engine, monkeypatch)
    with pytest.raises(dj.WorkInterrupted, match="was interrupted"):
        WITH_TEXTS[work](engine, tmp_path)


def test_what_a_measurement_had_found_is_kept(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 4)
    whole, kept = engine.loss([LINE, OTHER]), []
    for moment in itertools.count(1):
        with monkeypatch.context() as patch:
            came = interrupted_at(moment, engine, patch)
            try:
                engine.loss([LINE, OTHER])
            except dj.WorkInterrupted as broken:
                kept.append(broken.kept)
            if not came():
                break
    assert None in kept
    [first, *_] = (one for one in kept if one is not None)
    assert first.tokens == (LINE,)
    assert (first[0] == whole[0]).all()


def test_what_a_measurement_had_found_is_kept_where_its_session_is_ended(
    engine: RemoteEngine, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 4)
    whole = engine.loss([LINE, OTHER])
    told, asked = engine.channel.ask, itertools.count(1)

    def end_before_the_second(request: Any) -> Any:
        if isinstance(request, Score) and next(asked) == 2:
            desk.engine.submit(ask.Close(session=request.session), ME, lambda reply: None)
        return told(request)

    monkeypatch.setattr(engine.channel, "ask", end_before_the_second)
    with pytest.raises(MeasurementEnded, match=r"before its last prompt: .*score 1.* had found: Loss") as ended:
        engine.loss([LINE, OTHER])
    assert ended.value.kept.tokens == (LINE,)
    assert (ended.value.kept[0] == whole[0]).all()
