"""Stops count in the memory limit: older ones leave before any session does, come back bit for bit, end on the disk."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.offload.swappable import Storage
from djinn_jupyter.engine.residency import eviction
from djinn_jupyter.engine.session import reports
from djinn_jupyter.errors import SlabFull, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.replies import Paused
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.residency.doubles import HeldMover
from tests.engine.residency.evicting import held, made, nothing_left, post, until_idle
from tests.engine.residency.test_pressure import small

pytestmark = pytest.mark.drawn

PROMPT = tokens(300)
PAGES = 28
"""Nine pages more than the prompt's rows fill; a stop in it has the bytes of more than two."""


def stopped_everywhere(desk: Desk, name: str = "a") -> list[torch.Tensor]:
    """Stop in the prompt after each layer but the last; return the value at each of these stops."""
    desk.open(name)
    for layer in range(desk.layers - 1):
        desk.stop_at(layer, name=name, once=True)
    told = desk.run(PROMPT, 4, name)
    values = []
    for _ in range(desk.layers - 1):
        assert isinstance(told, Paused)
        values.append(desk.value(name=name))
        assert_within_the_limit(desk)
        told = desk.resume(name)
    return values


def assert_within_the_limit(desk: Desk) -> None:
    budget = desk.engine.budget
    sessions = [reports.describe(session) for session in desk.engine.sessions.values()]
    assert budget.overdrawn == 0
    assert max(session.device_bytes for session in sessions) <= budget.taken <= budget.limit


@pytest.fixture(scope="module")
def roomy() -> tuple[list[torch.Tensor], torch.Tensor, list[int]]:
    """The values at the stops, the logits and the tokens where nothing has to leave."""
    desk = desk_of("llama")
    values = stopped_everywhere(desk)
    found = values, desk.logits(), desk.session().tokens[:]
    desk.close_all()
    return found


def away(desk: Desk, name: str = "a") -> list[int]:
    """The stops of which something is not on the device."""
    session = desk.session(name)
    of = desk.engine.residency.swapping.older_stops.of
    return [n for n, stop in enumerate(session.history.stops) if any(not storage.resident for storage in of(stop))]


def test_the_limit_holds_for_kept_stops_and_the_session_stays(roomy: Any) -> None:
    desk = small(PAGES)
    values = stopped_everywhere(desk)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(values, roomy[0], strict=True))
    assert desk.session().tokens == roomy[2]
    assert torch.equal(desk.logits(), roomy[1])
    desk.settle()
    assert away(desk), "otherwise nothing had to leave, and this test shows nothing"
    described = desk.describe()
    assert (described.residency, described.stops_kept) == ("resident", desk.layers - 1)
    assert described.host_bytes > 0
    budget = desk.engine.reading.statistics.budget
    assert {one.kind: one.bytes_held for one in budget.holdings}["stops and states"] > 0
    desk.close_all()
    assert nothing_left(desk)


def test_going_back_fetches_a_stop_and_it_goes_on_bit_for_bit(roomy: Any) -> None:
    values, logits, made_then = roomy
    desk = small(PAGES)
    stopped_everywhere(desk)
    for count in range(1, desk.layers):
        desk.back(count if desk.session().state == "idle" else 1)
        assert_within_the_limit(desk)
        assert torch.equal(desk.value(), values[desk.layers - 1 - count])
    desk.clear()
    desk.resume(free=True)
    assert desk.session().tokens == made_then
    assert torch.equal(desk.logits(), logits)
    desk.close_all()


def sunk(desk: Desk, name: str = "a") -> int:
    """Return how many of the oldest stops hold nothing on device and host."""
    stops, of = desk.session(name).history.stops, desk.engine.residency.swapping.older_stops.of
    there = [all("disk" in b.copies and "host" not in b.copies and not b.resident for b in of(s)) for s in stops]
    return there.index(False) if False in there else len(there)


def test_stops_beyond_those_kept_in_memory_lie_on_the_disk_and_can_be_gone_back_to(roomy: Any) -> None:
    values, logits, _ = roomy
    desk = made(stops_kept=2)
    stopped_everywhere(desk)
    let_copies_end(desk)
    total = desk.layers - 1
    assert (len(desk.session().history.stops), sunk(desk)) == (total, total - 2)
    desk.back(total)
    assert torch.equal(desk.value(), values[0])
    desk.clear()
    desk.resume(free=True)
    assert torch.equal(desk.logits(), logits)
    with pytest.raises(UsageError, match=r"There is one earlier stop to go back to\.$"):
        desk.back(2)
    desk.close_all()
    assert nothing_left(desk)


def let_copies_end(desk: Desk) -> None:
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)


def test_without_a_disk_the_oldest_stops_are_dropped_and_back_says_why() -> None:
    desk = made(stops_kept=2, disk_memory=0)
    stopped_everywhere(desk)
    with pytest.raises(UsageError, match=r"2 earlier stops.*5 before are gone.*--stops-kept.*--disk-memory"):
        desk.back(3)
    assert isinstance(desk.back(2), Paused)
    desk.close_all()


def test_on_a_full_disk_the_oldest_stops_are_dropped_for_newer_ones() -> None:
    desk = made(stops_kept=2, disk_memory=3 * 48 << 10)
    stopped_everywhere(desk)
    let_copies_end(desk)
    history = desk.session().history
    assert 0 < history.on_disk < desk.layers - 3
    with pytest.raises(UsageError, match=rf"{history.dropped} before are gone.*The disk tier has no room"):
        desk.back(len(history.stops) + 1)
    assert (history.on_disk, history.beyond) == (3, 0), "no stop is dropped for whose place none is gained"
    assert isinstance(desk.back(len(history.stops)), Paused)
    del history
    desk.close_all()
    assert nothing_left(desk)


def test_a_stop_that_is_gone_back_to_is_not_dropped_meanwhile(roomy: Any) -> None:
    """A newer stop waits for its place on a full disk while its bytes are being read."""
    values, _, _ = roomy
    desk = made(stops_kept=2, disk_memory=3 * 48 << 10)
    stopped_everywhere(desk)
    let_copies_end(desk)
    history = desk.session().history
    oldest = history.dropped
    mover = held(desk)
    replies = post(desk, ask.Back(session="a", count=len(history.stops)))
    history.kept = 1  # a stop in memory is one too many now
    while not replies:
        mover.finish()
        until_idle(desk)
    assert isinstance(replies[0], Paused), replies
    assert torch.equal(desk.value(), values[oldest])
    del history
    desk.close_all()


def end(mover: HeldMover, desk: Desk) -> None:
    """End the copies that are held, and those that begin by that."""
    while mover.batches:
        mover.finish()
        until_idle(desk)


@pytest.mark.parametrize("need", [1, 1 << 30], ids=["a part", "all of them"])
def test_a_stop_that_finds_the_disk_full_waits_for_the_writes_under_way_and_for_no_other_copies(
    need: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "WRITE_THROUGH_SECONDS", float("inf"))  # or a slow machine copies all stops at rest
    desk = made(stops_kept=2, disk_memory=3 * 48 << 10)
    mover, total = held(desk), desk.layers - 1
    stopped_everywhere(desk)
    history, residency = desk.session().history, desk.engine.residency
    assert (len(history.stops), history.on_disk, history.beyond) == (total, 3, total - 5), "dropping would free nothing"
    end(mover, desk)
    assert (history.dropped, history.on_disk, history.beyond) == (total - 5, 3, 0)
    residency.swapping.older_stops.push_out(need)
    assert mover.batches, "on its way to the host"
    history.kept = 1
    residency.bound(desk.session())
    assert (history.dropped, history.on_disk, history.beyond) == (total - 4, 3, 0)
    end(mover, desk)
    desk.engine.tiers.mover = desk.engine.mover
    del history
    desk.close_all()
    assert nothing_left(desk)


def test_stops_that_leave_at_once_are_a_change_also_where_new_storages_are_found_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that waits for the next change would wait until the engine is idle."""
    desk = desk_of("llama")
    stopped_everywhere(desk)
    swapping, found = desk.engine.residency.swapping, [torch.zeros(1 << 20)]
    swapping.write_through(desk.session())
    while desk.engine.tiers.moving:
        desk.engine.mailbox.wait()
        desk.engine.tick()
    leaving = list(swapping.older_stops._may_leave())
    assert leaving
    assert all(storage.copies for storage in leaving)

    def found_meanwhile(of: object) -> Iterator[Storage]:
        swapping.storage_table.note(found)
        yield from leaving

    monkeypatch.setattr(swapping.older_stops, "_may_leave", found_meanwhile)
    before = swapping.changes
    assert swapping.push_out(1) == leaving[0].nbytes
    assert not leaving[0].resident
    assert swapping.changes > before
    leaving.clear()
    desk.close_all()


def test_the_stop_that_a_session_stands_at_is_not_dropped_for_newer_ones(roomy: Any) -> None:
    desk = made(stops_kept=2, disk_memory=3 * 48 << 10)
    mover, total = held(desk), desk.layers - 1
    stopped_everywhere(desk)
    desk.back(total)
    history = desk.session().history
    assert (history.present, history.beyond) == (0, total - 5)
    end(mover, desk)
    assert (history.present, history.dropped) == (0, 0)
    assert torch.equal(desk.value(), roomy[0][0])
    desk.engine.tiers.mover = desk.engine.mover
    del history
    desk.close_all()


def test_stops_whose_place_on_the_disk_comes_free_while_their_session_runs_go_there_at_its_end() -> None:
    desk = made(stops_kept=2, disk_memory=3 * 48 << 10)
    mover = held(desk)
    stopped_everywhere(desk)
    history, beyond = desk.session().history, desk.layers - 6
    replies: list[Any] = []
    desk.post(ask.Run(session="a", extend=True, tokens=(3,), max_new_tokens=3, ignore_eos=True), replies)
    desk.engine.tick()
    mover.finish()
    desk.engine.tick()
    assert (desk.session().work, history.beyond) == ("run", beyond)
    until_idle(desk)
    end(mover, desk)
    assert replies
    assert (history.dropped, history.beyond) == (beyond, 0)
    desk.engine.tiers.mover = desk.engine.mover
    del history
    desk.close_all()


def test_a_stop_that_the_disk_does_not_take_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = made(stops_kept=2)
    disk = desk.engine.tiers.disk
    monkeypatch.setattr(disk._file, "write", lambda chunk, offset: 0)
    stopped_everywhere(desk)
    let_copies_end(desk)
    desk.stop_at(7)
    desk.run(PROMPT, 2)
    assert sunk(desk) == 0
    desk.close_all()


def test_a_stop_that_fits_nowhere_ends_its_run_with_a_sentence_and_the_limit_holds() -> None:
    desk = small(21, host_memory=0, disk_memory=0)
    desk.open()
    desk.stop_at("mlp_pre.3")
    with pytest.raises(SlabFull, match=r"The stop keeps .* the limit is .* for all"):
        desk.run(PROMPT, 2)
    assert desk.session().state == "idle"
    desk.settle()
    assert_within_the_limit(desk)
    desk.close_all()


def test_without_tiers_the_oldest_stops_give_way_to_a_new_one(roomy: Any) -> None:
    desk = small(PAGES, host_memory=0, disk_memory=0)
    values = stopped_everywhere(desk)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(values, roomy[0], strict=True))
    assert 0 < len(desk.session().history.stops) < desk.layers - 1
    with pytest.raises(UsageError, match="no room for them on the device, nor in a tier"):
        desk.back(desk.layers - 1)
    desk.close_all()


def test_older_stops_leave_before_a_session_that_rests_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "WRITE_THROUGH_SECONDS", float("inf"))
    desk = small(PAGES + 8)
    stopped_everywhere(desk)
    desk.open("b")
    desk.run(tokens(100), 2, "b")
    assert desk.describe().residency == desk.describe("b").residency == "resident"
    assert away(desk)
    desk.close_all()


def test_what_a_checkpoint_of_stops_that_are_away_copied_is_freed_with_the_session(tmp_path: Path) -> None:
    """It is freed at once, not when the collector of cycles runs: until then the tiers' places would be taken."""
    desk = small(PAGES, data_folder=tmp_path)
    stopped_everywhere(desk)
    assert away(desk)
    gc.disable()
    try:
        desk.ask(ask.SaveCheckpoint(session="a", name="kept"))
        desk.close_all()
        assert nothing_left(desk)
        assert list(desk.engine.storage_table) == []
    finally:
        gc.enable()


def test_a_journal_and_a_checkpoint_hold_stops_that_are_away(roomy: Any, tmp_path: Path) -> None:
    values, logits, _ = roomy
    desk = small(PAGES, data_folder=tmp_path)
    journal(desk, tmp_path)
    stopped_everywhere(desk)
    assert away(desk)
    kept: Any = desk.engine.persistence.journal
    kept._accounts["a"].stored.begin_anew()  # as after a write that failed: all that is away is written again
    desk.ask(ask.SaveCheckpoint(session="a", name="kept"))
    kept.touch("a")
    written(desk)
    (tmp_path / "copy").mkdir()
    found = crashed(tmp_path / "journals", tmp_path / "copy" / "journals").parent
    forget(desk)
    other = small(PAGES, data_folder=tmp_path)
    assert journal(other, found) == ("a",)
    other.ask(ask.RestoreCheckpoint(session="b", name="kept"))
    for name in "ab":
        other.back(3, name=name)
        assert torch.equal(other.value(name=name), values[4])
        other.clear(name)
        other.resume(name, free=True)
        assert torch.equal(other.logits(name), logits)
    forget(other)
