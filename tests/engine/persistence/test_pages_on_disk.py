"""Pages that had reached the disk when an engine died are adopted bit for bit; missing pages are recomputed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.store import adopted
from djinn_jupyter.engine.store.journal_file import SUFFIX
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import WORKS, in_decode
from tests.families import build

PROMPT = tokens(40)


def desk_with(folder: Path, family: str = "llama", **config: Any) -> Desk:
    desk = build_desk(build(family), **config)
    for slab in desk.engine.slabs:
        slab.segments.poison = True
    journal(desk, folder)
    return desk


Make = Callable[..., Desk]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Desk] = []

    def one(folder: str, family: str = "llama", **config: Any) -> Desk:
        made.append(desk_with(tmp_path / folder, family, **config))
        return made[-1]

    yield one
    for desk in made:
        if desk.engine.persistence.journal is not None:
            forget(desk)
        desk.engine.check_invariants()


def after(one: Desk, tmp_path: Path, make: Make, **config: Any) -> Desk:
    """The engine that comes after `one` was killed."""
    written(one)
    crashed(tmp_path / "alive", tmp_path / "dead")
    return make("dead", **config)


def pages_file(folder: Path) -> Path:
    (found,) = folder.rglob(f"*{adopted.SUFFIX}")
    return found


@pytest.mark.parametrize(("family", "works"), [("llama", WORKS), ("gemma3_text", (in_decode,))])
def test_a_session_on_disk_is_found_with_all_its_rows(family: str, works: Any, tmp_path: Path, make: Make) -> None:
    one, seen = make("alive", family), {}
    for work in works:
        one.open()
        work(one)
        name = one.fork(work.__name__)
        seen[name] = reading(one, name)
    one.close("a")
    for name in seen:
        one.swap_out(name, "disk")
    other = after(one, tmp_path, make, family=family)
    run_before = other.engine.counters.layers_run
    for name in seen:
        found = other.describe(name)
        assert (found.exactness, found.residency) == ("exact", "disk"), name
        assert found.disk_bytes > 0
        other.ask(ask.Open(session=name))
        other.ask(ask.SwapIn(session=name))
        assert other.describe(name).residency == "resident"
        assert same(seen[name], reading(other, name)), name
    assert other.engine.counters.layers_run == run_before, "nothing was made again"
    for name in list(seen)[:2]:
        assert same(future(one, name), future(other, name)), name


def test_what_was_not_on_disk_or_has_changed_since_is_recomputed(tmp_path: Path, make: Make) -> None:
    one = make("alive")
    for name in ("stayed", "went", "came back"):
        one.open(name)
        one.run(PROMPT, 3, name)
        if name != "stayed":
            one.swap_out(name, "disk")
    one.run((), 4, "came back", extend=True)
    other = after(one, tmp_path, make)
    told = {one.name: one.exactness for one in other.engine.reading.sessions}
    assert told == {"stayed": "recomputed", "went": "exact", "came back": "recomputed"}
    for name in told:
        other.ask(ask.Open(session=name))
        assert same(future(one, name), future(other, name)), name


def test_forks_share_what_they_shared(tmp_path: Path, make: Make) -> None:
    one = make("alive")
    one.open()
    one.run(PROMPT, 3)
    one.fork("b")
    for name in "ab":
        one.swap_out(name, "disk")
    held = one.engine.slabs[0].pages_in_use
    other = after(one, tmp_path, make)
    assert other.engine.slabs[0].pages_in_use == held
    other.engine.check_invariants()
    for name in "ab":
        other.ask(ask.Open(session=name))
        assert same(future(one, name), future(other, name))
        assert other.session(name).exactness == "exact"


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_file_that_is_not_as_it_was_is_found_out_and_the_rows_are_made_again(
    damage: str, tmp_path: Path, make: Make
) -> None:
    one = make("alive")
    for name in "ab":
        one.open(name)
        one.run(tokens(40, seed=ord(name)), 3, name)
        one.swap_out(name, "disk")
    written(one)
    crashed(tmp_path / "alive", tmp_path / "dead")
    file = pages_file(tmp_path / "dead")
    place = one.engine.slabs[0].page(one.session("a").cache.groups[0].table.pages[1]).copies["disk"].place
    match damage:
        case "changed":
            content = bytearray(file.read_bytes())
            content[place.start + 100] ^= 1
            file.write_bytes(content)
        case "gone":
            file.unlink()
    other = make("dead")
    for name in "ab":
        other.ask(ask.Open(session=name))
        assert same(reading(one, name), reading(other, name))
        assert same(future(one, name), future(other, name))
    assert other.session("a").exactness == "recomputed"
    assert other.session("b").exactness == ("exact" if damage == "changed" else "recomputed")


def test_a_place_that_was_given_to_somebody_else_since_is_recognised(tmp_path: Path, make: Make) -> None:
    """`a` was on disk when its image was written; then it came back and its places went to `b`. The crash comes before
    `a` was written again."""
    one = make("alive")
    one.open("a")
    one.run(PROMPT, 3)
    one.swap_out("a", "disk")
    written(one)
    crashed(tmp_path / "alive", tmp_path / "before")
    places = [page.copies["disk"].place.start for page in one.engine.slabs[0]]
    expected = reading(one)
    one.close("a")
    one.open("b")
    one.run(tokens(40, seed=9), 3, "b")
    one.swap_out("b", "disk")
    written(one)
    assert {page.copies["disk"].place.start for page in one.engine.slabs[0]} & set(places)
    crashed(tmp_path / "alive", tmp_path / "dead")
    (stale,) = (tmp_path / "before").rglob(f"*{SUFFIX}")
    (there,) = (tmp_path / "dead").rglob(f"*{SUFFIX}")
    stale.rename(there.parent / stale.name)
    later = there.stat().st_mtime
    os.utime(there.parent / stale.name, (later - 10, later - 10))
    other = make("dead")
    assert other.session("b").exactness == "exact"
    for name in "ab":
        other.ask(ask.Open(session=name))
    assert same(reading(other)[1:], expected[1:])
    assert other.fork("c", "a") == "c"
    assert other.session("a").exactness == "recomputed"
    assert same(future(one, "b"), future(other, "b"))
    assert other.session("b").exactness == "exact"


def test_pages_of_another_size_are_not_taken_over(tmp_path: Path, make: Make) -> None:
    one = make("alive")
    one.open()
    one.run(PROMPT, 3)
    one.swap_out("a", "disk")
    other = after(one, tmp_path, make, page_positions=32)
    assert other.session("a").exactness == "recomputed"
    other.ask(ask.Open(session="a"))
    assert same(future(one), future(other))
