"""Sessions move between engines; either is killed on the way."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.loop.mailbox import Holder
from djinn_jupyter.engine.session.session import RequestId
from djinn_jupyter.errors import FingerprintsDiffer, IllegalMove, SessionsWouldSuffer, UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.base import person_of
from djinn_jupyter.wire.provenance import FINGERPRINT, require_equal
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.carrying import (
    MOVE,
    answers,
    begun,
    has_looked,
    moved,
    moves_below,
    provenance,
    sent,
    settled,
    taken,
)
from tests.engine.persistence.crashes import forget, written
from tests.engine.persistence.power import Cut, Disk, Said, after_cut, not_waited_for
from tests.engine.persistence.roundtrip import Work, future, pair_of, reading, rows_of, same
from tests.engine.persistence.works import FEWER, in_decode, in_prefill
from tests.families import build
from tests.waiting import until


@pytest.fixture(params=["llama"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Desk, Desk]]:
    one, other = pair_of(request.param)
    begun(one, tmp_path, "one")
    begun(other, tmp_path, "other")
    yield one, other
    forget(one)
    forget(other)


@pytest.mark.parametrize("pair", ["jamba"], indirect=True)
@pytest.mark.parametrize("work", FEWER, ids=lambda work: work.__name__)
def test_a_session_goes_on_bit_for_bit_in_the_other_engine(pair: tuple[Desk, Desk], work: Work) -> None:
    one, other = pair
    for desk in (one, other):
        desk.open()
        work(desk)
    unmoved = future(other)
    other.close("a")
    before, rows = reading(one), rows_of(one.session().cache)
    moved(one, other)
    assert not one.engine.sessions
    assert other.describe().exactness == "exact"
    assert same(before, reading(other))
    assert same(rows, rows_of(other.session().cache))
    assert same(unmoved, future(other))
    assert list(other.engine.persistence.moves.folder.folder.iterdir()) == []


def test_shares_and_answered_requests_go_along(pair: tuple[Desk, Desk]) -> None:
    one, other = pair
    one.open()
    in_prefill(one)
    one.session().shares.grant("bert", "read")
    one.session().answered.conclude(RequestId(client=b"c", number=7), b"reply")
    moved(one, other)
    assert other.session().shares.by_person == {"bert": "read"}
    assert other.session().answered.find(RequestId(client=b"c", number=7)).reply == b"reply"


def test_engines_that_differ_are_refused_with_the_difference(
    pair: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one that sends, and by the other, which compares too."""
    one, other = pair
    one.open()
    in_prefill(one)
    before, there = reading(one), provenance(other)
    for name in FINGERPRINT:
        unlike = msgspec.structs.replace(there, **{name: 77 if name in ("threads", "tensor_parallel") else "another"})
        of_model = name in ("architecture", "configuration", "weights")
        said = "different models" if of_model else rf"differ in {name.replace('_', ' ')} \("
        with pytest.raises(FingerprintsDiffer, match=said):
            one.ask(ask.SendAway(session="a", to=unlike, move=MOVE))
    assert same(before, reading(one))
    assert not (one.engine.persistence.moves.folder.folder / f"{MOVE}.djinn").exists()
    require_equal(there, msgspec.structs.replace(there, model="another name", revision="of it"))
    sent(one, other)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    with pytest.raises(FingerprintsDiffer, match=r"threads \(77 here, \d+ there\)"):
        taken(other)
    assert settled(one)
    assert (answers(one), answers(other)) == (True, False)


def test_until_it_is_settled_it_answers_nothing(pair: tuple[Desk, Desk]) -> None:
    one, other = pair
    one.open()
    in_prefill(one)
    before = reading(one)
    sent(one, other)
    for refused in (ask.Resume(session="a"), ask.Close(session="a", force=True), ask.Fork(session="a", name="b")):
        with pytest.raises(IllegalMove, match="on its way between two engines"):
            one.ask(refused)
    assert settled(one)
    assert same(before, reading(one))
    with pytest.raises(UsageError, match="it has ended"):
        taken(other)
    with pytest.raises(UsageError, match="has ended already"):
        sent(one, other)
    assert answers(one)
    assert list(one.engine.persistence.moves.folder.folder.iterdir()) == []


def test_a_move_that_is_given_up_while_the_session_is_taken_in_leaves_no_file(
    pair: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the other engine's journal says that it arrives, and after."""
    one, other = pair
    moves, persistence = other.engine.persistence.moves.folder, other.engine.persistence
    begin, forced = moves.begin_arrival, persistence.forced

    def given_up_before(move: str) -> None:
        assert settled(one, move=move)
        begin(move)

    def given_up_after(*noted: Any) -> Iterator[Any]:
        yield from forced(*noted)
        if not one.engine.sessions["a"].moving.present:
            return
        assert settled(one, move=MOVE[::-1])

    one.open()
    in_prefill(one)
    for move, place, given_up in (
        (MOVE, (moves, "begin_arrival"), given_up_before),
        (MOVE[::-1], (persistence, "forced"), given_up_after),
    ):
        sent(one, other, move=move)
        monkeypatch.setattr(*place, given_up)
        with pytest.raises(IllegalMove, match="given up meanwhile"):
            taken(other, move=move)
        monkeypatch.undo()
        assert (answers(one), answers(other)) == (True, False)
        assert list(moves.folder.iterdir()) == []


def test_a_move_that_its_client_left_is_settled_by_the_engine(
    pair: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    for arrives, move in ((False, MOVE), (True, MOVE[::-1])):
        one.open()
        in_prefill(one)
        sent(one, other, move=move)
        if arrives:
            taken(other, move=move)
        moves = one.engine.moves
        one.engine.tick()
        assert not answers(one)
        monkeypatch.setattr(moves, "_clock", lambda now=moves._clock: now() + 1000)
        until(lambda: has_looked(one), "the decision")
        monkeypatch.undo()
        assert (answers(one), answers(other)) == (not arrives, arrives)


def test_what_cannot_be_moved_is_refused_and_stays(pair: tuple[Desk, Desk]) -> None:
    one, other = pair
    for desk in (one, other):
        desk.open()
    in_prefill(one)
    sent(one, other)
    with pytest.raises(UsageError, match="There is a session 'a' already"):
        taken(other)
    assert settled(one)
    assert answers(one)
    other.close("a")
    stranger = Holder(name="another", user="tester", notebook=None)
    with pytest.raises(SessionsWouldSuffer, match="to move it away all the same"):
        one.engine.ask(ask.SendAway(session="a", to=provenance(other), move=MOVE[::-1]), stranger)
    with pytest.raises(UnknownSession):
        sent(one, other, "nobody")
    one.ask(ask.Open(session="sweep", temporary=True))
    with pytest.raises(UsageError, match="that of a measurement"):
        sent(one, other, "sweep")
    moves_below(other, other.engine.persistence.moves.folder.folder / "elsewhere")
    sent(one, other, move=MOVE[::-1])
    with pytest.raises(UsageError, match="keep their sessions in different folders"):
        taken(other, move=MOVE[::-1])
    assert settled(one, move=MOVE[::-1])
    assert answers(one)


@pytest.mark.parametrize(("before", "after"), [("main", "anna@main"), ("anna@main", "main")])
def test_it_belongs_there_to_whom_its_mover_is_at_the_other_engine(
    pair: tuple[Desk, Desk], before: str, after: str
) -> None:
    """One who is the own user of an engine, and a person at the other. Nobody else can take it in."""
    one, other = pair
    asker = {name: Holder(name="kernel", user="anna", person=person_of(name)) for name in (before, after, "bert@main")}
    one.engine.ask(ask.Open(session=before), asker[before])
    one.engine.ask(ask.Run(session=before, tokens=(1, 2, 3), max_new_tokens=2), asker[before])
    tokens = one.session(before).tokens
    person = other.engine.ask(ask.ReadProvenance(), asker[after]).person
    assert person == person_of(after)
    one.engine.ask(ask.SendAway(session=before, to=provenance(other), move=MOVE, person=person), asker[before])
    for name in (before, "bert@main"):
        with pytest.raises(UsageError, match=r"The session was sent to (anna|the engine's own user), who alone"):
            other.engine.ask(ask.TakeIn(session=name, move=MOVE), asker[name])
    other.engine.ask(ask.TakeIn(session=after, move=MOVE), asker[after])
    assert not one.engine.ask(ask.SettleMove(session=before, move=MOVE), asker[before]).stayed
    assert other.session(after).tokens == tokens
    assert before not in one.engine.sessions


STEPS = ("sent", "taken", "settled")


class Roads:
    """A move that was recorded whole, two engines to begin anew after it was cut short, and how the session stood."""

    def __init__(self, root: Path) -> None:
        one, other = (build_desk(build("llama", layers=6)) for _ in range(2))
        self.engines = tuple(build_desk(build("llama", layers=6)) for _ in range(2))
        self.disk = Disk(root=root)
        with self.disk.recording():
            begun(one, root, "one")
            begun(other, root, "other")
            one.open()
            in_decode(one)
            written(one)
            self.seen = reading(one)
            self.begins = len(self.disk.deeds)
            for step in STEPS:
                self._make(step, one, other)
                self.disk.say(step)
        self.future = future(other)
        forget(one)
        forget(other)

    def _make(self, step: str, one: Desk, other: Desk) -> None:
        match step:
            case "sent":
                sent(one, other)
            case "taken":
                taken(other)
                written(other)
            case "settled":
                assert not settled(one)

    def after(self, step: str) -> int:
        """Return the number of deeds up to the reply of that step."""
        return 1 + next(at for at, deed in enumerate(self.disk.deeds) if deed == Said(what=step))


@pytest.fixture(scope="module")
def roads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roads]:
    with not_waited_for():
        yield Roads(tmp_path_factory.mktemp("alive"))


def found(roads: Roads, cut: Cut, first: int) -> list[bool]:
    """Begin both engines anew after the cut, the `first` of them before the other; which of them has the session, after
    which it is seen to be as it stood."""
    names = ("one", "other")
    with tempfile.TemporaryDirectory() as folder:
        root = after_cut(roads.disk, cut, Path(folder) / "root")
        for at in (first, 1 - first):
            begun(roads.engines[at], root, names[at])
        has = [answers(desk) for desk in roads.engines]
        for desk in itertools.compress(roads.engines, has):
            assert same(reading(desk), roads.seen)
        for desk in roads.engines:
            forget(desk)
    return has


def test_both_are_killed_at_each_change_of_a_file(roads: Roads) -> None:
    """Either may be begun anew first."""
    places = range(roads.begins, len(roads.disk.deeds) + 1)
    assert len(places) > 20
    for after in places:
        has = found(roads, Cut(after=after, kept=1.0), after % 2)
        assert sum(has) == 1, (after, roads.disk.deeds[after - 1])
    assert found(roads, Cut(after=roads.begins, kept=1.0), 0) == [True, False]
    assert found(roads, Cut(after=len(roads.disk.deeds), kept=1.0), 0) == [False, True]


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_power_is_cut_anywhere(roads: Roads, data: st.DataObject) -> None:
    """Of what was not forced any part may be there. What a reply has told holds afterwards."""
    after = data.draw(st.integers(roads.begins, len(roads.disk.deeds)))
    kept = data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    has = found(roads, Cut(after=after, kept=kept, seed=after), data.draw(st.integers(0, 1)))
    assert sum(has) == 1, (after, kept)
    if after >= roads.after("taken"):
        assert has == [False, True]


def test_it_goes_on_bit_for_bit_wherever_it_is(roads: Roads) -> None:
    for after in (roads.begins, roads.after("sent"), roads.after("taken"), roads.after("settled")):
        with tempfile.TemporaryDirectory() as folder:
            root = after_cut(roads.disk, Cut(after=after, kept=1.0), Path(folder) / "root")
            for desk, name in zip(roads.engines, ("one", "other"), strict=True):
                begun(desk, root, name)
            (there,) = (desk for desk in roads.engines if answers(desk))
            assert same(future(there), roads.future)
            for desk in roads.engines:
                forget(desk)


@pytest.mark.parametrize("taking", [True, False], ids=["the one that takes it in", "the one that it leaves"])
def test_one_is_killed_at_each_change_while_the_other_lives(roads: Roads, tmp_path: Path, taking: bool) -> None:
    """The client of the one that lives settles the move, before the other is begun anew or after."""
    step = ("sent", "taken") if taking else ("taken", "settled")
    places = range(roads.after(step[0]), roads.after(step[1]) + 1)
    live, anew = roads.engines
    for number, (after, settles_first) in enumerate(itertools.product(places, (True, False))):
        root = after_cut(roads.disk, Cut(after=after, kept=1.0), tmp_path / str(number))
        lives(live, "one" if taking else "other", roads, tmp_path / f"{number}-before", step[0])
        moves_below(live, root)
        if settles_first:
            settled(live)
        begun(anew, root, "other" if taking else "one")
        if not settles_first:
            settled(live)
        assert [answers(live), answers(anew)].count(True) == 1, (after, settles_first)
        for desk in (live, anew):
            forget(desk)


def lives(desk: Desk, name: str, roads: Roads, folder: Path, step: str) -> None:
    """Bring an engine to where it was at the reply of a step, in memory."""
    root = after_cut(roads.disk, Cut(after=roads.after("sent"), kept=1.0), folder)
    if name == "other":
        begun(desk, root, name)
        taken(desk)
        return
    begun(desk, after_cut(roads.disk, Cut(after=roads.begins, kept=1.0), folder.with_name(f"{folder.name}-too")), name)
    moves_below(desk, folder / "of its own")
    sent(desk, desk)
