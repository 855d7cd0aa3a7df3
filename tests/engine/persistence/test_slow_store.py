"""While a store takes long over a session that moves, the engine answers the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.store import persistence as persistences
from djinn_jupyter.remote.engine import lease as leases
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import MoveSettled, Opened, Reply, SentAway
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.carrying import MOVE
from tests.engine.persistence.dying_lines import STORE
from tests.engine.persistence.faulty_store import Line
from tests.engine.persistence.test_stored_moves import Road
from tests.families import build
from tests.waiting import until


class Gate:
    """Holds up what is written to a store until it is opened."""

    def __init__(self, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        write = line._write

        def held_up(deed: Callable[[], Any]) -> Any:
            self.reached.set()
            assert self._open.wait(20), "the store was never quick again"
            return write(deed)

        monkeypatch.setattr(line, "_write", held_up)

    def open(self) -> None:
        self._open.set()


@pytest.fixture(scope="module")
def desks() -> tuple[Desk, Desk]:
    return build_desk(build("llama", layers=6)), build_desk(build("llama", layers=6))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(persistences, "S3Store", lambda address: lines[address.split("/")[3]])
    return lines


def steps(road: Road) -> list[tuple[int, Any, type[Reply]]]:
    """The steps of a move: at which engine, the request, and its reply."""
    return [
        (0, ask.SendAway(session="a", to=road.there, move=MOVE, store=STORE), SentAway),
        (1, ask.TakeIn(session="a", move=MOVE, store=STORE), Opened),
        (0, ask.SettleMove(session="a", move=MOVE), MoveSettled),
    ]


@pytest.mark.parametrize("way", [("folder", "folder"), ("store", "store")])
@pytest.mark.parametrize("number", [0, 1])
def test_another_s_verbs_are_answered_while_the_store_of_moves_is_slow(
    way: Any,
    number: int,
    desks: tuple[Desk, Desk],
    lines: dict[str, Line],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    road = Road(way, tmp_path, desks, lines)
    for at, request, _ in steps(road)[:number]:
        desks[at].ask(request)
    at, request, kind = steps(road)[number]
    desks[at].open("b")
    _answers_others(desks[at], request, kind, Gate(road.lines[at], monkeypatch), runs=True)
    for at, request, _ in steps(road)[number + 1 :]:
        desks[at].ask(request)
    assert road.found() == [False, True]
    road.end()


def test_a_move_that_stays_is_settled_beside_the_others(
    desks: tuple[Desk, Desk], lines: dict[str, Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = Road(("folder", "folder"), tmp_path, desks, lines)
    desks[0].open("b")
    assert road.send()
    _answers_others(desks[0], steps(road)[2][1], MoveSettled, Gate(road.lines[0], monkeypatch), runs=True)
    assert road.found() == [True, False]
    road.end()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_another_s_looks_are_answered_while_the_store_of_the_journal_is_slow(
    number: int, desks: tuple[Desk, Desk], lines: dict[str, Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is moved is noted there before anything is decided, and closed there afterwards."""
    road = Road(("store", "store"), tmp_path, desks, lines)
    for at, request, _ in steps(road)[:number]:
        desks[at].ask(request)
    at, request, kind = steps(road)[number]
    desks[at].open("b")
    _answers_others(desks[at], request, kind, Gate(lines[("one", "other")[at]], monkeypatch), runs=False)
    for at, request, _ in steps(road)[number + 1 :]:
        desks[at].ask(request)
    assert road.found() == [False, True]
    road.end()


def _answers_others(desk: Desk, request: Any, kind: type[Reply], slow: Gate, *, runs: bool) -> None:
    """Have the engine work on a request, which the store holds up, and ask for another session meanwhile."""
    replies: list[Reply] = []
    desk.post(request, replies)
    until(lambda: desk.engine.tick() and slow.reached.is_set(), "the store is asked")
    desk.ask(ask.ReadHistory(session="b"))
    if runs:
        desk.ask(ask.Run(session="b", tokens=(1, 2, 3), max_new_tokens=1))
    assert replies == []
    slow.open()
    until(lambda: desk.engine.tick() and replies, "the reply")
    assert isinstance(replies[0], kind)
