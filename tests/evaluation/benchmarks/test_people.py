"""The notebooks of the benchmark of people: what one of them meets ends it, and what is foretold of more of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from djinn_evaluation.benchmarks import people
from djinn_evaluation.benchmarks.harness import Checks, Disagreement, Setting
from djinn_jupyter.link.transport import WireBytes
from tests.engine.desk import desk_of
from tests.faults.inside import moved
from tests.waiting import SECONDS

ALONE = [[7, 8]] * people.PROMPTS
Crowding = Callable[[Callable[[], list[int]]], tuple[people.Crowd, Checks]]


@pytest.fixture
def crowd_of(monkeypatch: pytest.MonkeyPatch) -> Crowding:
    """Three notebooks on no engine; a turn gives what the argument returns. Their time is over once one is at work."""
    at_work = threading.Event()

    @contextmanager
    def notebook(engine: Any, name: str) -> Iterator[Any]:
        session = SimpleNamespace(close=lambda: None)
        yield SimpleNamespace(wire_bytes=WireBytes(), session=lambda name, fresh: session)

    def crowd(turn: Callable[[], list[int]]) -> tuple[people.Crowd, Checks]:
        def at_last(session: Any, prompt: list[int], turns: people.Turns, mode: str) -> list[int]:
            at_work.set()
            return turn()

        monkeypatch.setattr(people, "_turn", at_last)
        setting, checks = Setting(quick=True, threads=1, home=Path("none")), Checks()
        engine: Any = SimpleNamespace()
        return people.crowd_at_work([engine], 3, ALONE, ALONE, setting, checks), checks

    monkeypatch.setattr(people, "notebook", notebook)
    monkeypatch.setattr(people, "pid_of", lambda engine: os.getpid())
    monkeypatch.setattr(people, "sleep", lambda seconds: at_work.wait(SECONDS))
    monkeypatch.setattr(people, "THINKING", 0.001)
    return crowd


def test_notebooks_that_get_their_tokens_are_counted(crowd_of: Crowding) -> None:
    crowd, checks = crowd_of(lambda: [7, 8])
    assert (crowd.notebooks, crowd.engines, len(crowd.turns)) == (3, 1, 3)
    assert checks.counts == {"notebooks of 3 that got other tokens than alone": 1}


def test_other_tokens_in_one_notebook_end_the_benchmark(crowd_of: Crowding) -> None:
    with pytest.raises(Disagreement, match="other tokens than alone"):
        crowd_of(lambda: [7, 9])


def test_an_error_in_one_notebook_ends_the_benchmark(crowd_of: Crowding) -> None:
    def fails() -> list[int]:
        raise RuntimeError("no memory for this session")

    with pytest.raises(RuntimeError, match="no memory for this session"):
        crowd_of(fails)


@pytest.mark.parametrize("cost", [0.01, 0.04, 0.1])
def test_the_engines_foretold_are_the_fewest_and_what_they_wait_for_is_named(cost: float) -> None:
    costs = {people.THREAD: cost, people.LINE: cost / 100}
    on_one, figure = people._foretold(10_000, costs)
    engines, alone = round(figure.value.median), sum(costs.values())
    assert people.foretell(10_000, engines, costs).response_seconds <= 2 * alone
    assert people.foretell(10_000, engines - 1, costs).response_seconds > 2 * alone
    assert on_one.name.endswith(f"which wait for {people.THREAD}")
    assert on_one.value.median == pytest.approx(10_000 * cost - people.THINKING, rel=0.02)  # its thread never rests
    busy = on_one.sides[f"busy part of {people.THREAD}"]
    assert busy.median == pytest.approx(1, rel=1e-6)


def test_a_turn_tells_the_time_to_the_stop_to_the_first_token_and_of_each() -> None:
    desk = desk_of("llama")
    turns = people.Turns()
    with moved(desk) as engine:
        tokens = people._turn(engine.session("a", fresh=True), [5, 6, 7], turns)
    desk.close_all()
    assert len(tokens) == people.NEW
    ((first,), (each,), (stop,), (whole,)) = (turns.firsts, turns.tokens, turns.stops, turns.whole)
    assert 0 < first < each * people.NEW < whole
    assert stop < whole


def test_the_mode_of_a_turn_is_that_of_its_run() -> None:
    class Told(Exception):
        pass

    class Session:
        def breakpoint(self, *site: str, **when: object) -> None: ...

        def run(self, prompt: list[int], *, mode: str, **more: object) -> None:
            raise Told(mode)

    session: Any = Session()
    for mode in people.MODES:
        with pytest.raises(Told, match=mode):
            people._turn(session, [1], people.Turns(), mode)


def test_what_shared_passes_relieve_the_thread_of_is_told_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowd(engines: Any, notebooks: int, *of: Any) -> people.Crowd:
        thread, turns = {"exact": (12.0, 3), "fast": (4.0, 4)}[of[-1]]
        whole = [people.Turns(whole=[1.0] * turns)]
        seconds = {"thread_seconds": thread, "engine_seconds": thread, "client_seconds": 1.0, "seconds": 2.0}
        return people.Crowd(notebooks=notebooks, engines=len(engines), turns=whole, **seconds)

    monkeypatch.setattr(people, "crowd_at_work", crowd)
    engine: Any = SimpleNamespace()
    setting = Setting(quick=True, threads=1, home=Path("none"))
    thread, speed = people._relief(engine, [], ALONE, setting, Checks())
    assert (thread.value.median, thread.value.count) == (0.25, 3)
    assert speed.value.median == pytest.approx(4 / 3)
