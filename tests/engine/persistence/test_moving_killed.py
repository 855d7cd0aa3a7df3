"""Engines that are killed in the midst of a move, at each change of a file, and a power cut there: the session is at
exactly one of the two afterwards, as it stood, whichever is begun anew first."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.carrying import MOVE, answers, begun, moves_below, sent, settled, taken
from tests.engine.persistence.crashes import forget, last_image, written
from tests.engine.persistence.power import Cut, Disk, Named, Said, after_cut, not_waited_for
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import in_decode
from tests.families import build

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
    places = range(roads.begins, len(roads.disk.deeds) + 1)
    assert len(places) > 20
    for after in places:
        for first in (0, 1):
            has = found(roads, Cut(after=after, kept=1.0), first)
            assert sum(has) == 1, (after, first, roads.disk.deeds[after - 1])
    assert found(roads, Cut(after=roads.begins, kept=1.0), 0) == [True, False]
    assert found(roads, Cut(after=len(roads.disk.deeds), kept=1.0), 0) == [False, True]


def test_the_disk_knows_of_the_move_before_there_is_anything_to_take_in(roads: Roads, tmp_path: Path) -> None:
    """Nothing is there that was not forced: the names of the files on the way come from a later moment."""
    appeared = next(
        at for at, deed in enumerate(roads.disk.deeds) if isinstance(deed, Named) and deed.name.stem == MOVE
    )
    root = after_cut(roads.disk, Cut(after=appeared), tmp_path / "root")
    (kept,) = (root / "one").rglob("*.session")
    assert last_image(kept)["moving"]["move"] == MOVE


@given(data=st.data())
@settings(max_examples=60, deadline=None)
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
