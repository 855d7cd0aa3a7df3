"""A session moves to or from an engine whose journal is in a store: whichever process dies at whichever deed, and
whatever the lines to the store do, the session is at exactly one of the two afterwards, as it stood."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from djinn_jupyter.engine.process.build import open_journal
from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store import persistence as persistences
from djinn_jupyter.errors import DjinnError, IllegalMove, StorageFailed, UsageError
from djinn_jupyter.remote.engine import lease as leases
from djinn_jupyter.remote.engine import object_store as stored_files
from djinn_jupyter.remote.engine.checkpoint_store import CheckpointStore, MoveStore
from djinn_jupyter.remote.engine.move_folder import MoveFolder, MovePlaces
from djinn_jupyter.remote.engine.requests_moving import looked_at
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import MoveSettled, Opened, Reply, SentAway
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.carrying import MOVE, answers, has_looked, provenance
from tests.engine.persistence.faulty_store import Fault, Line, Objects
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import in_decode
from tests.families import build
from tests.waiting import until

STORE: Final = "s3://lab/moves"
Side = Literal["before", "after"]


class LifeLine(Line):
    """A line of a process to one store; what is done there counts for its death."""

    def __init__(self, objects: Objects, address: str, life: Life) -> None:
        super().__init__(objects, address)
        self.life = life

    def _fault(self) -> Fault | None:
        return self.life.fault() or super()._fault()


@dataclass
class Life:
    """One process, which dies before or after the effect of its deed of that number; None: it lives."""

    deeds: int | None = None
    side: Side = "before"
    dead: bool = False
    at_death: Callable[[], None] = lambda: None

    def fault(self) -> Fault | None:
        if self.dead:
            return "before"
        if self.deeds is None:
            return None
        self.deeds -= 1
        if self.deeds > 0:
            return None
        self.die()
        return self.side

    def die(self) -> None:
        self.dead = True
        self.at_death()


class FilesOf:
    """The files of sessions on their way, on the same line (`Objects` of the package)."""

    def __init__(self, line: Line) -> None:
        self.address, self._line = line.address, line

    def put(self, file: Path, name: str, *, replace: bool) -> None:
        assert replace
        try:
            self._line.put(name, file.read_bytes())
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def get(self, name: str, file: Path) -> None:
        try:
            file.write_bytes(self._line.read(name)[0])
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageFailed(str(error)) from error

    def sizes(self) -> dict[str, int]:
        return {}


@dataclass
class Place:
    """An engine's journal, and its present process. `lines` are those to the store of its journal, by its name."""

    name: str
    kind: Literal["store", "folder"]
    root: Path
    moves: Objects
    lines: dict[str, Line]
    objects: Objects = field(default_factory=Objects)
    life: Life = field(default_factory=Life)
    lives: int = 0

    def begin(self, desk: Desk, *, cut: bool = False) -> Line:
        """Let an engine begin anew with this journal; return its line to the store of moves, which may be cut."""
        self.lives += 1
        self.life = Life(at_death=self._keep)
        folder = self.root / f"{self.name}-{self.lives}"
        line, persistence = LifeLine(self.moves, STORE, self.life), desk.engine.persistence
        self.lines[self.name] = LifeLine(self.objects, f"s3://lab/{self.name}", self.life)
        files = CheckpointStore(FilesOf(line), folder / "way", persistence.identity, desk.engine.forward.device)  # type: ignore[arg-type]
        line.cut = cut
        own = MoveFolder(folder / "moves", persistence.identity, desk.engine.forward.device)
        stored = self.kind == "store"
        persistence.moves = MovePlaces(None if stored else own, (STORE,), lambda address: MoveStore(line, files))
        persistence._store = f"s3://lab/{self.name}" if stored else None
        persistence._journals = folder / "journals"
        open_journal(desk.engine)
        return line

    def _keep(self) -> None:
        """Keep the files of this moment for the next process."""
        now = self.root / f"{self.name}-{self.lives}"
        if self.kind == "folder":
            shutil.copytree(now / "journals", self.root / f"{self.name}-{self.lives + 1}" / "journals")


def gone(desk: Desk) -> None:
    """Empty an engine whose process is dead, or that is not needed any more."""
    for session in desk.engine.sessions.values():
        session.moving.end()
    desk.close_all()
    journal = desk.engine.persistence.journal
    journal.abandon()
    desk.engine.persistence.journal = None


Kind = Literal["store", "folder"]
WAYS: tuple[tuple[Kind, Kind], ...] = (("store", "store"), ("store", "folder"), ("folder", "store"))
FAULTS = some.lists(some.sampled_from([None, None, None, "before", "after", "late"]), max_size=8)


@pytest.fixture(scope="module")
def lines() -> Iterator[dict[str, Line]]:
    """The lines to the stores of journals, by their names."""
    lines: dict[str, Line] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "RETRY_SECONDS", 0.0)
        patch.setattr(stored_files, "RETRY_SECONDS", 0.0)
        patch.setattr(leases, "WAIT_SECONDS", 0.0)
        patch.setattr(persistences, "S3Store", lambda address: lines[address.split("/")[3]])
        yield lines


@pytest.fixture(scope="module")
def desks() -> tuple[Desk, Desk]:
    return build_desk(build("llama", layers=6)), build_desk(build("llama", layers=6))


class Road:
    """A session that is about to move from the first place to the second, and the client that takes it there."""

    def __init__(self, way: tuple[Kind, Kind], root: Path, desks: tuple[Desk, Desk], lines: dict[str, Line]) -> None:
        self.desks, self.moves, self.told = desks, Objects(), list[str]()
        self.places = tuple(
            Place(name, kind, root, self.moves, lines) for name, kind in zip(("one", "other"), way, strict=True)
        )
        self.lines = [place.begin(desk) for place, desk in zip(self.places, desks, strict=True)]
        self.there = provenance(desks[1])
        desks[0].open()
        in_decode(desks[0])
        self.seen = reading(desks[0])

    def send(self) -> bool:
        return self._asked(0, ask.SendAway(session="a", to=self.there, move=MOVE, store=STORE))

    def take(self) -> bool:
        return self._asked(1, ask.TakeIn(session="a", move=MOVE, store=STORE))

    def settle(self) -> bool:
        return self._asked(0, ask.SettleMove(session="a", move=MOVE))

    def _asked(self, at: int, request: Any) -> bool:
        """Return whether the client had the answer that the request was done."""
        done = False
        with suppress(DjinnError):
            self.desks[at].ask(request)
            done = not self.places[at].life.dead
        if done:
            self.told.append(type(request).__name__)
        return done

    def client(self) -> None:
        """Do what `client.moving` does, as long as the engines live."""
        if self.send():
            self.take()
        self.settle()

    def die_too(self, at: int) -> None:
        if not self.places[at].life.dead:
            self.places[at].life.die()

    def begin_anew(self, at: int) -> None:
        if self.places[at].life.dead:
            gone(self.desks[at])
            self.lines[at] = self.places[at].begin(self.desks[at])

    def settle_what_is_left(self) -> None:
        """Do what engines do of themselves when a client has left a move."""
        for desk in self.desks:
            session = desk.engine.sessions.get("a")
            if session is not None and session.moving.present is not None:
                moves = desk.engine.moves
                deque(moves.settle(session, session.moving.present, looked_at), maxlen=0)

    def found(self) -> list[bool]:
        has = [answers(desk) for desk in self.desks]
        for desk, here in zip(self.desks, has, strict=True):
            assert not here or same(reading(desk), self.seen)
        if "TakeIn" in self.told:
            assert has == [False, True]
        return has

    def end(self) -> None:
        for desk in self.desks:
            if desk.engine.persistence.journal is not None:
                gone(desk)


@given(
    way=some.sampled_from(WAYS),
    dies=some.integers(0, 1),
    deeds=some.integers(1, 12),
    side=some.sampled_from(["before", "after"]),
    both=some.booleans(),
    first=some.integers(0, 1),
    settled_between=some.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_process_dies_at_any_deed(
    lines: dict[str, Line],
    desks: tuple[Desk, Desk],
    way: tuple[Kind, Kind],
    dies: int,
    deeds: int,
    side: Side,
    both: bool,
    first: int,
    settled_between: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        road = Road(way, Path(folder), desks, lines)
        road.places[dies].life.deeds, road.places[dies].life.side = deeds, side
        road.client()
        if both:
            road.die_too(dies)
            road.die_too(1 - dies)
        for at in (first, 1 - first):
            road.begin_anew(at)
            if settled_between:
                road.settle()
        road.settle()
        has = road.found()
        assert sum(has) == 1, road.told
        road.end()


@given(way=some.sampled_from(WAYS), faults=some.tuples(FAULTS, FAULTS), late=some.integers(0, 3), again=some.booleans())
@example(way=("store", "folder"), faults=([], [None, None, None, "late"]), late=2, again=False)
@example(way=("store", "store"), faults=([], [None] * 5 + ["late"]), late=3, again=True)
@example(way=("folder", "store"), faults=([None, "late"], []), late=3, again=True)
@settings(max_examples=20, deadline=None)
def test_lines_that_break_and_puts_that_arrive_late_leave_it_at_one(
    lines: dict[str, Line],
    desks: tuple[Desk, Desk],
    way: tuple[Kind, Kind],
    faults: tuple[list[Fault | None], list[Fault | None]],
    late: int,
    again: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        road = Road(way, Path(folder), desks, lines)
        for line, some_faults in zip(road.lines, faults, strict=True):
            line.faults = list(some_faults)
        for number, step in enumerate((road.send, road.take, road.settle)):
            if number == late:
                road.moves.let_late_ones_arrive()
            if not step() and number == 0:
                break
        for line in road.lines:
            line.faults = []
        road.settle()
        road.moves.let_late_ones_arrive()
        road.settle_what_is_left()
        if again:
            for at in (0, 1):
                road.die_too(at)
                road.begin_anew(at)
        road.settle_what_is_left()
        assert sum(road.found()) == 1, road.told
        road.end()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " to ".join(way))
def test_it_goes_on_bit_for_bit_and_leaves_no_object(
    lines: dict[str, Line], desks: tuple[Desk, Desk], way: tuple[Kind, Kind], tmp_path: Path
) -> None:
    road = Road(way, tmp_path, desks, lines)
    other = desks[1]
    other.open()
    in_decode(other)
    unmoved = future(other)
    other.close("a")
    road.client()
    assert road.told == ["SendAway", "TakeIn", "SettleMove"]
    assert road.found() == [False, True]
    assert other.describe().exactness == "exact"
    assert same(future(other), unmoved)
    assert road.moves.now == {}
    road.end()


def test_of_two_engines_that_take_a_session_in_one_has_it(
    lines: dict[str, Line], desks: tuple[Desk, Desk], tmp_path: Path
) -> None:
    road = Road(("store", "store"), tmp_path, desks, lines)
    assert road.send()
    moves = desks[1].engine.persistence.moves.at(STORE)
    moves.begin_arrival(MOVE)
    with pytest.raises(IllegalMove, match="given up meanwhile"):
        moves.begin_arrival(MOVE)
    with pytest.raises(UsageError, match=f"No session waits in {STORE} for this move"):
        moves.read(MOVE)
    assert road.settle()
    assert road.found() == [True, False]
    road.end()


def test_a_session_whose_decision_cannot_be_read_answers_nothing_until_it_can(
    lines: dict[str, Line], desks: tuple[Desk, Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that was being sent when its process died, and of others nothing."""
    road = Road(("folder", "store"), tmp_path, desks, lines)
    one = desks[0]
    one.open("b")
    assert road.send()
    road.die_too(0)
    gone(one)
    road.lines[0] = road.places[0].begin(one, cut=True)
    assert answers(one, "b")
    with pytest.raises(IllegalMove, match="on its way between two engines"):
        one.ask(ask.Resume(session="a"))
    assert road.take()
    moves = one.engine.moves
    monkeypatch.setattr(moves, "_clock", lambda now=moves._clock: now() + 1000)
    until(lambda: has_looked(one))
    assert not road.found()[0], "the store still does not answer"
    road.lines[0].cut = False
    monkeypatch.setattr(moves, "_clock", lambda now=moves._clock: now() + 2000)
    until(lambda: has_looked(one))
    assert "a" not in one.engine.sessions
    assert road.found() == [False, True]
    road.end()


# --- a slow store -----------------------------------------------------------------------------------------------------


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


def steps(road: Road) -> list[tuple[int, Any, type[Reply]]]:
    """The steps of a move: at which engine, the request, and its reply."""
    return [
        (0, ask.SendAway(session="a", to=road.there, move=MOVE, store=STORE), SentAway),
        (1, ask.TakeIn(session="a", move=MOVE, store=STORE), Opened),
        (0, ask.SettleMove(session="a", move=MOVE), MoveSettled),
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_another_s_verbs_are_answered_while_the_store_of_moves_is_slow(
    number: int, desks: tuple[Desk, Desk], lines: dict[str, Line], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    road = Road(("store", "store"), tmp_path, desks, lines)
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
