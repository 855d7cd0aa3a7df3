"""Pages, and recurrent and convolution states, that had reached the disk when an engine died are taken over bit for
bit; where one bit of them is another or the file is gone, that session is made again and says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.swappable import StorageTable, Stored
from djinn_jupyter.engine.store import adopted as adopted_states
from djinn_jupyter.engine.store.dump import dump_session
from djinn_jupyter.engine.store.journal_file import SUFFIX
from djinn_jupyter.engine.store.locked_folder import LockedFolder
from djinn_jupyter.engine.store.records import values_of
from djinn_jupyter.engine.store.session_store import ImageSource, LeftBehind
from djinn_jupyter.engine.store.values import dtype_of
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.memory.kv.runs import CPU
from tests.engine.persistence.crashes import crashed, forget, journal, last_image, pages_file, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import WORKS, in_decode, inside_a_layer
from tests.engine.residency.doubles import FileInMemory
from tests.families import build

PROMPT = tokens(40)
SLOW = ("gemma3_text", "mamba2", "bamba", "qwen3_next", "falcon_h1", "lfm2", "zamba2", "nemotron_h", "mamba")
every_family = pytest.mark.parametrize(
    "engines", ["jamba", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)], indirect=True
)


@pytest.fixture(scope="module", params=["jamba"])
def engines(request: pytest.FixtureRequest) -> tuple[Desk, Desk]:
    """Two engines of one model, which has pages and states: one that is killed, and one that comes after it."""
    desks = build_desk(build(request.param)), build_desk(build(request.param))
    for slab in (slab for desk in desks for slab in desk.engine.slabs):
        slab.segments.poison = True
    return desks


@pytest.fixture
def pair(engines: tuple[Desk, Desk], tmp_path: Path) -> Iterator[tuple[Desk, Desk]]:
    one, other = engines
    journal(one, tmp_path / "alive")
    yield one, other
    for desk in (one, other):
        if desk.engine.persistence.journal is not None:
            forget(desk)
        desk.engine.storage_table.purge()  # images held some of their tensors until the journal ended
        desk.engine.check_invariants()
        assert desk.engine.tiers.disk.used == 0


def killed(pair: tuple[Desk, Desk], tmp_path: Path) -> Path:
    """Return a copy of the files that the first engine leaves at this moment."""
    written(pair[0])
    return crashed(tmp_path / "alive", tmp_path / "dead")


def come(desk: Desk, *names: str) -> None:
    for name in names:
        desk.ask(ask.Open(session=name))
        desk.swap_in(name)


def states(desk: Desk, name: str) -> list[Any]:
    """Return the states of the layers now, of the pass's beginning, and of those that lines kept, on any tier."""
    session, engine = desk.session(name), desk.engine
    kept = [
        state
        for generation in session.generations
        for states in generation.states.values()
        for state in states.values()
    ]
    now = list(session.cache.live_states().values())
    every = [[list(state.tensors()) for state in states] for states in (now, session.saved_states.values(), kept)]
    return [[[values_of(engine.storage_table, t).clone() for t in state] for state in states] for states in every]


def spots(desk: Desk, name: str) -> dict[str, list[Any]]:
    """Return what a session has in the file: its states and its pages."""
    session, storage_table = desk.session(name), desk.engine.storage_table
    now = [storage_table.of(t) for state in session.cache.live_states().values() for t in state.tensors()]
    marks = [s for generation in session.generations for states in generation.states.values() for s in states.values()]
    kept = [storage_table.of(t) for state in marks for t in state.tensors()]
    pages = [group.slab.page(number) for group in session.cache.groups for number in group.table.pages]
    return {"now": now, "kept on the way": kept, "pages": pages}


@every_family
def test_a_session_on_disk_is_found_with_all_its_states(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    names, seen = [work.__name__ for work in WORKS], {}
    for work, name in zip(WORKS, names, strict=True):
        one.open()
        work(one)
        one.fork(name)
        seen[name] = [reading(one, name), states(one, name)]
    one.close("a")
    for name in names:
        one.swap_out(name, "disk")
    assert set(journal(other, killed(pair, tmp_path))) == set(names)
    found = [other.describe(name) for name in names]
    assert {(one.exactness, one.residency) for one in found} == {("exact", "disk")}
    before = other.engine.counters.layers_run
    come(one, *names)
    come(other, *names)
    other.engine.check_invariants(contents=True)
    for name in names:
        assert same(seen[name], [reading(other, name), states(other, name)]), name
    assert other.engine.counters.layers_run == before, "nothing was made again"
    for name in ("inside_a_layer", "drawn_with_a_seed", "finished"):
        assert same(future(one, name), future(other, name)), name
        assert other.session(name).exactness == "exact"


@every_family
def test_a_flipped_bit_costs_its_session_the_passes_and_nobody_else(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    names = ("now", "kept on the way", "pages", "whole")
    for name, work in zip(names, (inside_a_layer, in_decode, in_decode, in_decode), strict=True):
        one.open("a")
        work(one)
        one.fork(name)
        one.swap_out(name, "disk")
    one.close("a")
    dead = killed(pair, tmp_path)
    flipped = [name for name in names[:3] if spots(one, name)[name]]
    for name in flipped:
        place = spots(one, name)[name][-1].copies["disk"].place
        with pages_file(dead).open("r+b") as content:
            content.seek(place.start + 5)
            (byte,) = content.read(1)
            content.seek(place.start + 5)
            content.write(bytes([byte ^ 8]))
    journal(other, dead)
    come(one, *names)
    come(other, *names)
    for name in names:
        assert same(reading(one, name), reading(other, name)), name
        assert same(states(one, name)[1], states(other, name)[1]), name
        assert same(future(one, name), future(other, name)), name
    assert {name for name in names if other.session(name).exactness == "recomputed"} == set(flipped)


def test_a_file_that_is_gone_is_made_good(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    one.open()
    inside_a_layer(one)
    one.swap_out("a", "disk")
    dead = killed(pair, tmp_path)
    pages_file(dead).unlink()
    journal(other, dead)
    for desk in pair:
        come(desk, "a")
    assert same(reading(one), reading(other))
    assert same(future(one), future(other))
    assert other.session("a").exactness == "recomputed"


def test_what_forks_share_is_there_once_and_what_nobody_names_is_free(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    one, other = pair
    one.open()
    in_decode(one)
    one.fork("b")
    for name in "ab":
        one.swap_out(name, "disk")
    there = [{id(b): b for kind in ("now", "kept on the way") for b in spots(one, name)[kind]} for name in "ab"]
    assert there[0].keys() & there[1].keys(), "what a line keeps on the way"
    pages = [page for slab in one.engine.slabs for page in slab]
    assert one.engine.tiers.disk.places > len(pages) + len(there[0] | there[1]), "frames and logits"
    journal(other, killed(pair, tmp_path))
    assert other.engine.tiers.disk.places == len(pages) + len(there[0] | there[1])
    come(other, "a", "b")
    come(one, "a", "b")
    for name in "ab":
        assert same(future(one, name), future(other, name)), name
        assert other.session(name).exactness == "exact"


@pytest.mark.parametrize("names", ["one place twice", "a storage that is not there"])
def test_an_image_that_contradicts_itself_takes_nothing(
    names: str, pair: tuple[Desk, Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one.open()
    in_decode(one)
    one.swap_out("a", "disk")
    dead, recover = killed(pair, tmp_path), LockedFolder.recover

    def altered(self: LockedFolder, source: ImageSource) -> list[LeftBehind]:
        (found,) = recover(self, source)
        spots = found.image.places.storages
        first, *_, last = spots
        spots = {number: spot for number, spot in spots.items() if number != last}
        if names == "one place twice":
            spots[last] = spots[first]
        places = msgspec.structs.replace(found.image.places, storages=spots)
        return [replace(found, image=msgspec.structs.replace(found.image, places=places))]

    monkeypatch.setattr(LockedFolder, "recover", altered)
    journal(other, dead)
    assert other.engine.tiers.disk.used == 0
    assert other.session().exactness == "recomputed"
    assert same(future(one), future(other))


def test_what_lines_have_kept_is_named_once_for_all_images(
    pair: tuple[Desk, Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of a long line would otherwise take its engine a third of a second, at every breakpoint that is set."""
    one, _ = pair
    one.open()
    one.run(tokens(16), new=100)
    one.swap_out("a", "disk")
    kept = one.engine.persistence.journal
    assert kept.pages is not None
    assert len(one.session().generation.states) > 5
    named: list[str] = []
    keep = adopted_states.keep
    monkeypatch.setattr(adopted_states, "keep", lambda *what: named.append(what[1]) or keep(*what))
    images = []
    for _ in range(2):
        images.append(kept.pages.places_of(one.session(), dump_session(one.session(), None)))
        live = len(one.session().cache.live_states())  # outside of the assertion: to print what is away would read it
        assert len(named) == live, "those that the next pass writes"
        named.clear()
    assert images[0] == images[1] is not None


def test_views_of_one_storage_come_back_as_views_of_one_storage() -> None:
    file, whole = FileInMemory(), torch.arange(24.0).reshape(4, 6)
    views = [whole.t()[1:], whole[2:, ::2], whole[3, 5]]
    before, tier = StorageTable({CPU: Budget(1 << 30)}), DiskTier(file, 1 << 30)
    storage = before.of(whole)
    (place,) = tier.allocate([storage.nbytes])
    checksum = tier.write(place, storage.span())
    storage.keep("disk", Stored(keeper=tier, place=place, version=0, checksum=checksum))
    naming = adopted_states._Naming(before, tier)
    state = LayerState(fields=(("views", dict(enumerate(views))),))
    (image,) = naming.states({0: state}, {}).values()
    named: list[Any] = [view for _, view in image.entries[0][1].entries]
    assert naming.storages == {storage.identity: (place.start, whole.nbytes, checksum)}
    stored = Stored(keeper=tier, place=place, version=0, checksum=checksum)
    adopted, untyped = StorageTable({CPU: Budget(1 << 30)}).adopt(stored, None)
    made = [adopted.tensor(dtype_of(one.dtype), one.shape, one.strides, one.offset) for one in named]
    assert untyped.nbytes() == 0
    with pytest.raises(InvariantError):
        adopted.tensor(torch.float32, (5, 6), (6, 1), 0)
    adopted.make_place()
    tier.read(place, checksum, adopted.span())
    adopted.note_arrival()
    for view, back in zip(views, made, strict=True):
        assert torch.equal(view, back)
        assert view.stride() == back.stride()
        assert back.untyped_storage().data_ptr() == untyped.data_ptr()


def test_one_place_is_never_what_two_sessions_write(pair: tuple[Desk, Desk], tmp_path: Path) -> None:
    """`b` did the same as `a`, and its bytes lie where those of `a` lay. The crash came before `a` was forgotten."""
    one, other = pair
    for name in "ab":
        one.open(name)
        one.run(PROMPT, 3, name)
        one.swap_out(name, "disk")
        written(one)
        if name == "a":
            crashed(tmp_path / "alive", tmp_path / "before")
            one.close("a")
            one.engine.storage_table.purge()
    dead = killed(pair, tmp_path)
    (stale,) = (tmp_path / "before").rglob(f"*{SUFFIX}")
    (there,) = dead.rglob(f"*{SUFFIX}")
    before, after = (last_image(file)["places"]["storages"].values() for file in (stale, there))
    assert sorted(before) == sorted(after)
    stale.rename(there.parent / stale.name)
    later = there.stat().st_mtime
    os.utime(there.parent / stale.name, (later - 10, later - 10))
    journal(other, dead)
    assert {name: other.session(name).exactness for name in "ab"} == {"a": "recomputed", "b": "exact"}
    other.engine.check_invariants()
    come(other, "a", "b")
    come(one, "b")
    ends = future(one, "b")
    assert same(future(other, "b"), ends)
    assert same(future(other, "a"), ends)


def test_what_runs_on_after_it_left_is_made_again_and_what_was_left_alone_is_found_twice(
    pair: tuple[Desk, Desk], tmp_path: Path
) -> None:
    """An image names places only as long as nothing was written since; the next engine's images do too."""
    one, other = pair
    for name in ("left alone", "run on"):
        one.open(name)
        one.run(PROMPT, 3, name)
        one.swap_out(name, "disk")
        one.swap_in(name)
    one.run((), 4, "run on", extend=True)
    journal(other, killed(pair, tmp_path))
    told = {one.name: one.exactness for one in other.engine.reading.sessions}
    assert told == {"left alone": "exact", "run on": "recomputed"}
    assert same(future(one, "run on"), future(other, "run on"))
    come(other, "left alone")
    written(other)
    forget(one)
    journal(one, crashed(tmp_path / "dead", tmp_path / "dead again"))
    assert one.session("left alone").exactness == "exact"
    come(one, "left alone")
    assert same(states(one, "left alone"), states(other, "left alone"))
    assert same(future(one, "left alone"), future(other, "left alone"))
