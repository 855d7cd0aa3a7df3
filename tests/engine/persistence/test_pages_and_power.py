"""A loss of power while sessions go to the disk and come back: an engine finds their pages there, or says that it made
them again; either way it has the bits that were."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.memory.offload import disk as disks
from djinn_jupyter.engine.memory.offload import tiers
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import PAGE, Desk, tokens
from tests.engine.persistence.crashes import forget, journal, written
from tests.engine.persistence.power import Cut, Disk, Said, after_cut, not_waited_for
from tests.engine.persistence.roundtrip import pair_of, reading, rows_of, same

numbers = itertools.count()
Key = tuple[str, tuple[int, ...], str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The state of each session that the journal has from this moment on; the sessions on the disk with all pages."""

    states: dict[str, Key]
    on_disk: frozenset[str]


class Day:
    """An engine at work on a recording disk, and the engine after it. `seen`: the readings of a session in each of
    its states."""

    def __init__(self, desk: Desk, other: Desk, disk: Disk) -> None:
        self.desk, self.other, self.disk = desk, other, disk
        self.seen: dict[Key, tuple[int, list[Any], list[Any]]] = {}

    def note(self, name: str) -> None:
        session = self.desk.session(name)
        self.seen[key_of(self.desk, name)] = (len(self.seen), reading(self.desk, name), rows_of(session.cache))
        self.kept()

    def kept(self, *, but: str = "") -> None:
        """Note what is kept now; the session `but` is about to be closed."""
        written(self.desk)
        names = [name for name in self.desk.engine.sessions if name != but]
        on_disk = frozenset(name for name in names if self.desk.session(name).residence.state == "disk")
        self.disk.say(Kept(states={name: key_of(self.desk, name) for name in names}, on_disk=on_disk))

    def go(self) -> None:
        desk = self.desk
        for name, seed in (("a", 1), ("b", 2)):
            desk.open(name)
            desk.stop_at(4, when="step == 1", name=name)
            desk.run(tokens(20, seed=seed), 3, name)
            self.note(name)
        for name in "ab":
            desk.swap_out(name, "disk")
            self.kept()
        desk.resume("a", free=True)
        self.note("a")
        desk.run(tokens(12, seed=5), 2, "a", extend=True)
        self.note("a")
        self.kept(but="b")
        desk.close("b")
        self.kept()
        desk.open("c")
        desk.run(tokens(28, seed=4), 2, "c")
        self.note("c")
        for name in "ca":
            desk.swap_out(name, "disk")
            self.kept()


def key_of(desk: Desk, name: str) -> Key:
    session = desk.session(name)
    return name, tuple(session.tokens), session.state, len(session.history.stops)


@pytest.fixture(scope="module", params=["jamba"])
def day(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """The sessions have pages and states of recurrent layers. The day is recorded once and cut many
    times. The disk tier's file grows in small steps, or each cut would copy much."""
    with not_waited_for(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(disks, "GROWTH_BYTES", 1 << 20)
        root = tmp_path_factory.mktemp("alive")
        one, other = pair_of(request.param, PAGE)
        disk = Disk(root)
        with disk.recording():
            journal(one, root)
            day = Day(one, other, disk)
            day.go()
        yield day
        forget(one)


def found_after(day: Day, cut: Cut, folder: Path) -> dict[str, str]:
    """Return how exact each session is that the next engine finds, once its rows were wanted. Fails where one is wrong
    or missing."""
    other = day.other
    for slab in other.engine.slabs:
        slab.segments.poison = True
    journal(other, after_cut(day.disk, cut, folder))
    try:
        kept = [deed.what for deed in day.disk.deeds[: cut.after] if isinstance(deed, Said)]
        states = kept[-1].states if kept else {}
        found = tuple(other.engine.sessions)
        assert set(states) <= set(found)
        for name in found:
            known = _is_right(day, other, name)
            assert name not in states or known >= day.seen[states[name]][0], f"{name} is older than what was forced"
        return {name: other.session(name).exactness for name in found}
    finally:
        forget(other)


def _is_right(day: Day, other: Desk, name: str) -> int:
    """Check that the session equals one of its past states to the last bit; return the number of that state."""
    other.ask(ask.Open(session=name))
    number, seen, rows = day.seen.get(key_of(other, name), (-1, None, None))
    session = other.session(name)
    if seen is None:
        assert not session.tokens, "opened, and nothing more was kept"
        return number
    if session.state == "paused":
        other.value("resid_post.0", name)
    else:
        other.fork("look", name)
        other.close("look")
    assert same(rows_of(session.cache), rows)
    assert same(reading(other, name)[1:], seen[1:])
    return number


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(when=st.floats(0, 1), kept=st.sampled_from([0.0, 0.1, 0.5, 0.9]), seed=st.integers(0, 1 << 30))
def test_whatever_is_left_of_the_pages_no_bit_is_wrong(
    day: Day, when: float, kept: float, seed: int, tmp_path: Path
) -> None:
    cut = Cut(after=round(when * len(day.disk.deeds)), kept=kept, seed=seed)
    found_after(day, cut, tmp_path / f"{next(numbers)}")


def test_what_an_image_says_is_on_the_disk_is_there(day: Day, tmp_path: Path) -> None:
    """It holds at each moment at which all images were written, without any change that was not forced."""
    told = []
    for after, deed in enumerate(day.disk.deeds):
        if isinstance(deed, Said):
            found = found_after(day, Cut(after=after + 1), tmp_path / str(after))
            assert {name for name in deed.what.on_disk if found[name] != "exact"} == set()
            told.append(set(found.values()))
    assert {"exact"} in told
    assert any("recomputed" in one for one in told)


def test_pages_that_the_disk_only_says_it_has_are_made_again(
    day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would therefore see pages that are named before they are forced; and even then no bit is wrong,
    and no client is told of the second copy that fails."""
    monkeypatch.setattr(tiers, "BATCH_BYTES", 20_000)
    last = max(after for after, deed in enumerate(day.disk.deeds) if isinstance(deed, Said))
    on_disk = day.disk.deeds[last].what.on_disk
    found = found_after(day, Cut(after=last + 1, lies=("pages",)), tmp_path / "left")
    assert {found[name] for name in on_disk} == {"recomputed"}
