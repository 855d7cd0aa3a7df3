"""Engines that end: in order, as for an upgrade, after which nothing is made again; broken, which keep nothing."""

from __future__ import annotations

import errno
import os
from collections import Counter
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from djinn_jupyter.engine.session import reports
from djinn_jupyter.engine.session.session import Session
from djinn_jupyter.engine.store import journal as journals
from djinn_jupyter.engine.store.journal import Journal
from djinn_jupyter.engine.system import device
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import CheckpointRefused, DjinnError, EngineBroken
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import edited_and_steered, finished, in_decode
from tests.families import build

NAMES = ("stopped", "on host", "ended")


def office(folder: Path, family: str = "llama", **config: object) -> Desk:
    desk = build_desk(build(family), **config)
    journal(desk, folder)
    return desk


def populated(folder: Path, **config: object) -> Desk:
    desk = office(folder, **config)
    for name, work in zip(NAMES, (in_decode, finished, finished), strict=True):
        desk.open()
        work(desk)
        desk.fork(name)
    desk.close("a")
    desk.swap_out("on host", "host")
    return desk


def told(desk: Desk) -> dict[str, tuple[str, str]]:
    described = (reports.describe(session) for session in desk.engine.sessions.values())
    return {one.name: (one.exactness, one.residency) for one in described}


def test_what_was_at_rest_is_found_on_disk_bit_for_bit(tmp_path: Path) -> None:
    one = populated(tmp_path)
    seen = {name: reading(one, name) for name in NAMES}
    twin = populated(tmp_path / "undisturbed")
    one.engine.close()
    other = office(tmp_path)
    assert told(other) == dict.fromkeys(NAMES, ("exact", "disk"))
    layers_run = other.engine.counters.layers_run
    for name in NAMES:
        other.ask(ask.Open(session=name))
        other.ask(ask.SwapIn(session=name))
        assert same(reading(other, name), seen[name]), name
    assert other.engine.counters.layers_run == layers_run, "nothing was made again"
    for name in NAMES:
        assert same(future(other, name), future(twin, name)), name
    for desk in (twin, other):
        forget(desk)
        desk.engine.check_invariants()


def test_who_finds_no_room_is_made_again(tmp_path: Path) -> None:
    one = populated(tmp_path, disk_memory=192 << 10)
    one.open("long")
    one.run(tokens(200), 2, "long")
    one.engine.close()
    other = office(tmp_path)
    assert told(other) == {**dict.fromkeys(NAMES, ("exact", "disk")), "long": ("recomputed", "resident")}
    forget(other)


@pytest.mark.parametrize("family", ["jamba", pytest.param("llama", marks=pytest.mark.slow)])
def test_a_run_is_broken_off_and_found_at_its_last_step_bit_for_bit(family: str, tmp_path: Path) -> None:
    one, twin = (office(tmp_path / folder, family) for folder in ("one", "undisturbed"))
    one.open()
    replies: list[Any] = []
    one.post(ask.Run(session="a", tokens=tokens(30), max_new_tokens=50, ignore_eos=True), replies)
    while len(one.session().tokens) < 35:
        one.engine.tick()
    made = tuple(one.session().tokens[30:])
    one.engine.close()
    assert [(reply.code, "ran" in reply.message) for reply in replies] == [("EngineUnavailable", True)]
    other = office(tmp_path / "one", family)
    assert told(other) == {"a": ("exact", "disk")}
    twin.open()
    whole = twin.run(tokens(30), 50).tokens
    assert whole[: len(made)] == tuple(other.session().tokens[30:]) == made
    more = other.run((), new=50 - len(made), extend=True)
    assert (*made, *more.tokens) == whole
    assert other.outcome(more).logits.equal(twin.logits())
    for desk in (twin, other):
        forget(desk)


def test_a_prompt_that_was_being_read_is_found_as_it_was_given(tmp_path: Path) -> None:
    one, twin = office(tmp_path / "one"), office(tmp_path / "undisturbed")
    one.open()
    one.post(ask.Run(session="a", tokens=tokens(30), max_new_tokens=5, ignore_eos=True), [])
    one.engine.dispatcher.read_mail()
    one.post(ask.Describe(session="a"), [])  # a request, for which the prompt gives way between two layers
    one.engine.turns.advance(one.engine.scheduler.jobs[0])
    assert one.session().frame is not None
    one.engine.close()
    other = office(tmp_path / "one")
    twin.open()
    assert other.session().tokens == list(tokens(30))
    assert other.run((), new=5, extend=True).tokens == twin.run(tokens(30), 5).tokens
    for desk in (twin, other):
        forget(desk)


def test_the_end_waits_for_one_session_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = populated(tmp_path)
    one.session("ended").residence.touch()
    clock = iter(range(100))
    monkeypatch.setattr(one.engine.orderly_shutdown, "_clock", lambda: float(next(clock)))
    one.engine.orderly_shutdown.put_away(seconds=2.0)
    monkeypatch.undo()
    while one.engine.tiers.moving:
        one.engine.mailbox.wait(1.0)
        one.engine.tick()
    assert told(one)["ended"] == ("exact", "disk"), "the last used goes first"
    assert told(one)["stopped"] == ("exact", "resident")
    forget(one)


def test_an_engine_that_is_told_to_forget_writes_nothing(tmp_path: Path) -> None:
    one = populated(tmp_path)
    one.engine.forget_sessions()
    one.engine.close()
    assert told(one)["stopped"] == ("exact", "resident")
    assert told(office(tmp_path)) == {}


def test_an_error_in_one_part_of_the_end_keeps_no_other_part_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = populated(tmp_path)

    def fail() -> None:
        raise OSError("Made to fail.")

    monkeypatch.setattr(one.engine.orderly_shutdown, "put_away", fail)
    with pytest.raises(OSError, match="Made to fail"):
        one.engine.close()
    other = office(tmp_path)
    assert set(told(other)) == set(NAMES), "the journal was closed, so that the next engine can take it"
    forget(other)


# --- images of running sessions ---------------------------------------------------------------------------------------


RUNNING = "abcd"
TICK, IMAGE = 0.001, 0.002  # seconds of the clock below


def running(desk: Desk, patch: pytest.MonkeyPatch, clock: list[float]) -> Journal:
    """Have the journal of four sessions that run, by the clock."""
    journal = desk.engine.persistence.journal
    for name in RUNNING:
        desk.open(name)
    patch.setattr(journals, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for name in RUNNING:
        patch.setattr(desk.session(name), "state", "running")
    return journal


def attend(desk: Desk, journal: Journal, clock: list[float], times: int) -> None:
    for _ in range(times):
        for name in RUNNING:
            journal.touch(name)
        journal.attend(desk.engine.sessions)
        clock[0] += TICK


def test_images_of_many_running_sessions_take_one_part_in_a_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock, written = office(tmp_path), [100.0], Counter[str]()
    write = Journal._write

    def timed(self: Journal, session: Session, **more: Any) -> None:
        write(self, session, **more)
        clock[0] += IMAGE
        written[session.name] += 1

    with monkeypatch.context() as patch:
        journal = running(desk, patch, clock)
        patch.setattr(Journal, "_write", timed)
        attend(desk, journal, clock, 5000)
    passed = clock[0] - 100.0
    assert 0.8 * passed / 100 < written.total() * IMAGE <= passed / 100 + IMAGE
    assert max(written.values()) - min(written.values()) <= 1
    assert written.keys() == set(RUNNING)
    forget(desk)


def test_a_running_session_whose_image_is_refused_leaves_the_others_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, clock, asked = office(tmp_path), [100.0], Counter[str]()
    image = Journal._image

    def refused(self: Journal, session: Session, account: Any) -> Any:
        asked[session.name] += 1
        if session.name == "a":
            raise CheckpointRefused("It holds a value of an unknown kind.")
        return image(self, session, account)

    with monkeypatch.context() as patch:
        journal = running(desk, patch, clock)
        patch.setattr(Journal, "_image", refused)
        attend(desk, journal, clock, 2000)
        assert journal.unkept == {"a"}
    assert min(asked[name] for name in RUNNING) >= 4  # in two seconds
    forget(desk)


# --- broken invariants ------------------------------------------------------------------------------------------------


PROMPT = tokens(12)


def break_the_accounting(desk: Desk) -> None:
    """Allocate one page that no session has."""
    desk.engine.slabs[0].allocate(1)


def images_kept(desk: Desk) -> int:
    journal = desk.engine.persistence.journal
    return journal.statistics.images


def test_nothing_of_a_broken_engine_is_answered_or_written_and_the_next_one_goes_on(tmp_path: Path) -> None:
    one, twin = office(tmp_path / "one"), office(tmp_path / "twin")
    for desk in (one, twin):
        desk.open()
        desk.run(PROMPT, 3)
        desk.settle()
    expected = twin.outcome(twin.run((), 4, extend=True))
    before = images_kept(one)
    break_the_accounting(one)
    replies: list[object] = []
    one.post(ask.Run(session="a", tokens=(), max_new_tokens=1, extend=True, ignore_eos=True), replies)
    one.engine.faults.suspected = True  # as after any unforeseen error
    for _ in range(2):
        with pytest.raises(EngineBroken, match=r"begins anew.*come back"):
            one.engine.tick()
    assert (replies, images_kept(one)) == ([], before)
    one.engine.abandon()
    other = office(tmp_path / "one")
    assert len(other.session().tokens) == len(PROMPT) + 3
    assert other.outcome(other.run((), 4, extend=True)) == expected
    for desk in (twin, other):
        forget(desk)


def test_books_that_are_found_broken_at_rest_are_not_kept_in_silence(tmp_path: Path) -> None:
    one = office(tmp_path)
    one.open()
    one.run(PROMPT, 1)
    break_the_accounting(one)
    with pytest.raises(EngineBroken, match="tables"):
        one.settle()
    one.engine.abandon()


def test_an_error_that_leaves_the_books_sound_is_told_and_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part of a slice of work that belongs to no request, one after the other."""
    desk = office(tmp_path)
    desk.open()
    engine = desk.engine
    parts = [
        (engine.upkeep.idle_sleep, "observe"),
        (engine.residency, "apply_pressure"),
        (engine.persistence, "attend"),
        (engine.residency.eviction, "attend"),
    ]
    parts += [
        (engine.state_publisher, "report_journal"),
        (engine.storage_table, "tidy"),
        (engine.storage_table, "purge"),
    ]
    parts += [
        (engine.residency.swapping, "advance_all"),
        (engine.residency.activity, "left_alone"),
        (engine.state_publisher, "publish"),
    ]
    for owner, name in parts:
        count = engine.faults.count
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, _fails, raising=True)
            desk.run(PROMPT, 2)
            while engine.tick():
                pass
        assert engine.faults.count > count, name
    engine.state_publisher.publish()
    told = engine.reading.statistics
    assert told.faults == engine.faults.count
    assert "not as it should be" in str(told.last_fault)
    desk.settle()
    forget(desk)


@pytest.mark.parametrize(("part", "name"), [("tiers", "settle"), ("residency.swapping", "_take_away")])
def test_who_waits_for_a_move_that_meets_an_error_is_told_and_others_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, name: str
) -> None:
    desk = office(tmp_path)
    for session in ("a", "b"):
        desk.open(session)
        desk.run(PROMPT, 2, session)
    with monkeypatch.context() as patch:
        patch.setattr(attrgetter(part)(desk.engine), name, _fails)
        with pytest.raises(DjinnError, match=r"does not know .InvariantError: It is not as it should be"):
            desk.swap_out("a")
    assert desk.swap_out("b").transfer is not None
    assert desk.run((), 2, "b", extend=True).tokens
    desk.engine.abandon()


def _fails(*_: object, **__: object) -> None:
    raise InvariantError("It is not as it should be.")


def test_an_engine_that_may_open_no_file_goes_on_with_its_last_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = office(tmp_path)
    desk.open()
    before = desk.engine.reading.statistics.process_bytes
    with monkeypatch.context() as patch:
        patch.setattr(device, "STATUS", SimpleNamespace(read_text=_too_many))
        patch.setattr(psutil.Process, "memory_info", _too_many)
        patch.setattr(desk.engine.state_publisher, "_published", 0.0)
        desk.run(PROMPT, 2)
    told = desk.engine.reading.statistics
    assert told.process_bytes == before
    assert "it measured memory: OSError: [Errno 24] Too many open files" in str(told.last_fault)
    forget(desk)


def _too_many(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


# --- sessions that were not made again --------------------------------------------------------------------------------


STANDING = ("accepted", "known", "untouched")


def made_of(folder: Path, family: str) -> Desk:
    """Make sessions, of which the last is edited and steered and the others are stopped in the midst of a line."""
    desk = office(folder, family)
    for name, work in zip(STANDING, (in_decode, in_decode, edited_and_steered), strict=True):
        desk.open()
        work(desk)
        desk.fork(name)
    desk.close("a")
    return desk


def standing(desk: Desk) -> dict[str, tuple[str, bool]]:
    return {session.name: (session.exactness, session.needs_recompute) for session in desk.engine.sessions.values()}


@pytest.mark.parametrize("family", ["mamba2", pytest.param("llama", marks=pytest.mark.slow)])
def test_what_was_not_needed_between_a_kill_and_a_stop_is_as_it_was(family: str, tmp_path: Path) -> None:
    """The engine is killed; its sessions are found, accepted by their user and armed anew without a pass; it is stopped
    in order, twice."""
    twin = made_of(tmp_path / "alive", family)
    written(twin)
    folder = crashed(tmp_path / "alive", tmp_path / "dead")
    for begun in range(3):
        desk = office(folder, family)
        if not begun:
            assert standing(desk) == dict.fromkeys(STANDING, ("recomputed", True))
            desk.ask(ask.AcceptRecomputed(session="accepted"))
        assert standing(desk) == {**dict.fromkeys(STANDING, ("recomputed", True)), "accepted": ("exact", True)}
        for one in (desk, twin):
            one.stop_at(6, name="known", when=f"step == {50 + begun}")
        assert desk.engine.counters.layers_run == 0
        if begun < 2:
            desk.engine.close()
    for name in STANDING:
        for one in (desk, twin):
            one.ask(ask.Open(session=name))
        assert same(reading(desk, name), reading(twin, name)), name
        assert same(future(desk, name), future(twin, name)), name
    assert standing(desk)["known"] == ("recomputed", False)
    for one in (desk, twin):
        forget(one)


def test_what_was_run_again_is_on_disk_after_the_stop_and_still_says_so(tmp_path: Path) -> None:
    twin = made_of(tmp_path / "alive", "llama")
    written(twin)
    desk = office(crashed(tmp_path / "alive", tmp_path / "dead"), "llama")
    for name in ("accepted", "known"):
        desk.value("resid_post.0", name=name)
    desk.ask(ask.AcceptRecomputed(session="accepted"))
    desk.engine.close()
    other = office(tmp_path / "dead", "llama")
    assert standing(other) == {
        "accepted": ("exact", False),
        "known": ("recomputed", False),
        "untouched": ("recomputed", True),
    }
    assert [other.describe(name).residency for name in STANDING[:2]] == ["disk", "disk"]
    layers_run = other.engine.counters.layers_run
    for name in STANDING[:2]:
        assert same(reading(other, name), reading(twin, name)), name
    assert other.engine.counters.layers_run == layers_run
    for one in (other, twin):
        forget(one)
