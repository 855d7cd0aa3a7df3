"""A session that is yet to be run again keeps all that its user made, and its standing, over any number of ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.persistence.roundtrip import future, reading, same
from tests.engine.persistence.works import edited_and_steered, in_decode
from tests.families import build

NAMES = ("accepted", "known", "untouched")


def office(folder: Path, family: str) -> Desk:
    desk = build_desk(build(family))
    journal(desk, folder)
    return desk


def populated(folder: Path, family: str) -> Desk:
    """Make sessions, of which the last is edited and steered and the others are stopped in the midst of a line."""
    desk = office(folder, family)
    for name, work in zip(NAMES, (in_decode, in_decode, edited_and_steered), strict=True):
        desk.open()
        work(desk)
        desk.fork(name)
    desk.close("a")
    return desk


def standing(desk: Desk) -> dict[str, tuple[str, bool]]:
    return {session.name: (session.exactness, session.needs_recompute) for session in desk.engine.sessions.values()}


@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_what_was_not_needed_between_a_kill_and_a_stop_is_as_it_was(family: str, tmp_path: Path) -> None:
    """The engine is killed; its sessions are found, accepted by their user and armed anew without a pass; it is stopped
    in order, twice."""
    twin = populated(tmp_path / "alive", family)
    written(twin)
    folder = crashed(tmp_path / "alive", tmp_path / "dead")
    for begun in range(3):
        desk = office(folder, family)
        if not begun:
            assert standing(desk) == dict.fromkeys(NAMES, ("recomputed", True))
            desk.ask(ask.AcceptRecomputed(session="accepted"))
        assert standing(desk) == {**dict.fromkeys(NAMES, ("recomputed", True)), "accepted": ("exact", True)}
        for one in (desk, twin):
            one.stop_at(6, name="known", when=f"step == {50 + begun}")
        assert desk.engine.counters.layers_run == 0
        if begun < 2:
            desk.engine.close()
    for name in NAMES:
        for one in (desk, twin):
            one.ask(ask.Open(session=name))
        assert same(reading(desk, name), reading(twin, name)), name
        assert same(future(desk, name), future(twin, name)), name
    assert standing(desk)["known"] == ("recomputed", False)
    for one in (desk, twin):
        forget(one)


def test_what_was_run_again_is_on_disk_after_the_stop_and_still_says_so(tmp_path: Path) -> None:
    twin = populated(tmp_path / "alive", "llama")
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
    assert [other.describe(name).residency for name in NAMES[:2]] == ["disk", "disk"]
    layers_run = other.engine.counters.layers_run
    for name in NAMES[:2]:
        assert same(reading(other, name), reading(twin, name)), name
    assert other.engine.counters.layers_run == layers_run
    for one in (other, twin):
        forget(one)
