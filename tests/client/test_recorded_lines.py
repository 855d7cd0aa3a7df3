"""The lines of a circuit are recorded once in a call: kept in the engine's budget, and let go at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.engine.patching import LineRecord
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk, tokens
from tests.families import build
from tests.threads import one_thread

CORRUPTED, METRIC = tokens(7), "logit(17) - logit(42)"
CLEAN, OTHER = ((*CORRUPTED[:3], *tokens(7, seed=seed)[3:]) for seed in (2, 3))
THRESHOLD = 0.02


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(build("llama", layers=2))


@pytest.fixture(scope="module")
def engine(desk: Desk) -> Iterator[RemoteEngine]:
    with reached(desk) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def pairs(engine: RemoteEngine) -> Edges:
    return dj.edges(engine, clean=[CLEAN, OTHER], corrupted=[CORRUPTED, CORRUPTED], metric=METRIC)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The lines that were recorded, in order."""
    found, of = [], LineRecord.of

    def noting(forward: Any, layers: Any, line: tuple[int, ...]) -> Any:
        found.append(line)
        return of(forward, layers, line)

    monkeypatch.setattr(LineRecord, "of", noting)
    return found


def held(desk: Desk) -> int:
    return desk.engine.budget.held()["edges"]


def test_each_line_of_each_pair_is_recorded_once_and_let_go_at_the_end(
    desk: Desk, engine: RemoteEngine, pairs: Edges, recorded: list[tuple[int, ...]]
) -> None:
    meanwhile: list[int] = []
    dj.acdc(engine, pairs, THRESHOLD, on_progress=lambda *done: meanwhile.append(held(desk)))
    assert recorded == [CORRUPTED, CLEAN, CORRUPTED, OTHER]
    assert len(meanwhile) > 3
    assert min(meanwhile) > 0
    assert held(desk) == 0
    recorded.clear()
    dj.circuit(engine, pairs, faithfulness=0.5)
    dj.circuit_curve(engine, pairs, sizes=(0.1, 1.0))
    assert recorded == 2 * [CORRUPTED, CLEAN, CORRUPTED, OTHER]
    assert held(desk) == 0
    assert engine.sessions() == ()


def test_an_interrupt_lets_them_go(desk: Desk, engine: RemoteEngine, pairs: Edges) -> None:
    def interrupted(*done: int) -> None:
        assert held(desk) > 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dj.acdc(engine, pairs, THRESHOLD, on_progress=interrupted)
    assert held(desk) == 0
    assert engine.sessions() == ()


def test_memory_that_others_need_is_given_to_them_and_the_lines_are_recorded_again(
    desk: Desk, engine: RemoteEngine, pairs: Edges, recorded: list[tuple[int, ...]]
) -> None:
    budget, undisturbed = desk.engine.budget, dj.acdc(engine, pairs, THRESHOLD)
    recorded.clear()

    def pressed(*done: int) -> None:
        for slab in desk.engine.slabs:
            slab.shrink()  # or its free pages would do
        asked = budget.free + 1
        budget.take(asked, by=pressed)
        assert held(desk) == 0
        budget.give_back(asked)

    found = dj.acdc(engine, pairs, THRESHOLD, on_progress=pressed)
    assert found.values.tobytes() == undisturbed.values.tobytes()
    assert found.edges == undisturbed.edges
    assert len(recorded) > 8
    desk.engine.check_invariants()


def test_a_session_that_is_closed_meanwhile_keeps_nothing(desk: Desk, engine: RemoteEngine, pairs: Edges) -> None:
    def closed(*done: int) -> None:
        [session] = engine.sessions()
        engine.session(session.name).close()
        assert held(desk) == 0

    with pytest.raises(dj.DjinnError):
        dj.acdc(engine, pairs, THRESHOLD, on_progress=closed)
    assert held(desk) == 0
