"""An engine that ends in order, as for an upgrade, makes the next one recompute nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from djinn_jupyter.engine.session import reports
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.persistence.crashes import forget, journal
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import finished, in_decode
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


@pytest.mark.parametrize("family", ["llama", "jamba", pytest.param("mamba2", marks=pytest.mark.slow)])
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
