"""An engine whose accounting of memory is wrong says so and writes none of it; the next engine has the rest."""

from __future__ import annotations

import errno
import os
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from djinn_jupyter.engine.system import device
from djinn_jupyter.engine.system.faults import InvariantError
from djinn_jupyter.errors import DjinnError, EngineBroken
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, tokens
from tests.engine.persistence.crashes import forget
from tests.engine.persistence.test_parting import office

PROMPT = tokens(12)


def break_the_accounting(desk: Desk) -> None:
    """Allocate one page that no session has."""
    desk.engine.slabs[0].allocate(1)


def kept(desk: Desk) -> int:
    journal = desk.engine.persistence.journal
    return journal.statistics.images


def test_nothing_of_a_broken_engine_is_answered_or_written_and_the_next_one_goes_on(tmp_path: Path) -> None:
    one, twin = office(tmp_path / "one"), office(tmp_path / "twin")
    for desk in (one, twin):
        desk.open()
        desk.run(PROMPT, 3)
        desk.settle()
    expected = twin.outcome(twin.run((), 4, extend=True))
    before = kept(one)
    break_the_accounting(one)
    replies: list[object] = []
    one.post(ask.Run(session="a", tokens=(), max_new_tokens=1, extend=True, ignore_eos=True), replies)
    one.engine.faults.suspected = True  # as after any unforeseen error
    for _ in range(2):
        with pytest.raises(EngineBroken, match=r"begins anew.*come back"):
            one.engine.tick()
    assert (replies, kept(one)) == ([], before)
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
        (engine.upkeep.idle_sleep, "tell"),
        (engine.residency, "heed"),
        (engine.persistence, "attend"),
        (engine.residency.eviction, "attend"),
    ]
    parts += [(engine.state_publisher, "heed_journal"), (engine.storage_table, "tidy"), (engine.storage_table, "purge")]
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
