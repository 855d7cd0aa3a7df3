"""Stores and loads that fail, disks that lie: a clear error, and nothing else lost."""

from __future__ import annotations

import pytest
import torch

from djinn_jupyter.engine.memory.offload.disk import DiskTier
from djinn_jupyter.engine.memory.offload.host import HostTier
from djinn_jupyter.errors import StorageFailed, TierFull
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, tokens
from tests.engine.residency.doubles import FileInMemory
from tests.engine.residency.evicting import PROMPT, held, made, post, until_idle


def test_a_store_that_fails_leaves_the_session_where_it_was(desk: Desk) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    before = desk.value()
    mover = held(desk)
    replies = post(desk, ask.SwapOut(session="a"))
    mover.go_on(fail=True)
    until_idle(desk)
    assert (replies[0].code, desk.describe().residency) == ("StorageFailed", "resident")
    assert torch.equal(desk.value(), before)
    desk.engine.tiers.mover = desk.engine.mover
    assert desk.swap_out().session.residency == "host", "and the next try may succeed"


def test_a_load_that_fails_answers_those_who_wait_and_can_be_tried_again(desk: Desk) -> None:
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    before = desk.value()
    desk.swap_out()
    mover = held(desk)
    looks, others = post(desk, ask.Inspect(session="a")), post(desk, ask.Lens(session="a"))
    mover.go_on(fail=True)
    until_idle(desk)
    assert looks[0].code == others[0].code == "StorageFailed"
    assert desk.describe().residency == "host"
    desk.engine.check_invariants()
    desk.engine.tiers.mover = desk.engine.mover
    assert torch.equal(desk.value(), before)


def test_a_disk_that_gives_back_other_bytes_is_found_out_and_hurts_nobody_else() -> None:
    desk = made()
    file = FileInMemory()
    desk.engine.tiers.disk = DiskTier(file, 1 << 30)
    for name in "ab":
        desk.open(name)
        desk.run(PROMPT, 2, name)
    expected = desk.logits("b")
    for name in "ab":
        desk.swap_out(name, "disk")
    place = next(iter(desk.engine.slabs[0])).copies["disk"].place
    file.corrupt(place.start + 100)
    with pytest.raises(StorageFailed, match="other bytes than were written"):
        desk.logits("a")
    assert desk.describe("a").residency == "disk"
    assert torch.equal(desk.logits("b"), expected)
    desk.close_all()


@pytest.mark.parametrize("fault", ["full", "short"])
def test_a_disk_that_takes_no_more_loses_nothing(fault: str) -> None:
    desk = made()
    file = FileInMemory()
    desk.engine.tiers.disk = DiskTier(file, 1 << 30)
    desk.open()
    desk.run(PROMPT, 2)
    expected = desk.logits()
    setattr(file, fault, True)
    with pytest.raises(StorageFailed, match="The disk took"):
        desk.swap_out("a", "disk")
    assert torch.equal(desk.logits(), expected)
    setattr(file, fault, False)
    desk.swap_out("a", "disk")
    assert torch.equal(desk.logits(), expected)
    desk.close_all()


def test_without_tiers_nobody_leaves_and_the_reply_says_how_to_allow_it() -> None:
    desk = made(host_memory=0, disk_memory=0)
    desk.open()
    desk.run(PROMPT, 2)
    for tier in ("host", "disk"):
        with pytest.raises(TierFull, match=f"--{tier}-memory"):
            desk.swap_out("a", tier)
    assert desk.engine.reading.statistics.tiers == ()
    desk.close_all()


def test_a_full_host_sends_on_who_has_rested_there_the_longest() -> None:
    desk = made()
    for name in "abcd":
        desk.open(name)
        desk.run(tokens(40, seed=ord(name)), 2, name)
    expected = {name: desk.logits(name) for name in "abcd"}
    size = desk.describe("a").device_bytes - desk.session("a").cache.working_bytes
    desk.engine.tiers.host = HostTier(2 * size + size // 2)
    where: dict[str, str] = {}
    for name in "bacd":
        desk.swap_out(name)
        where = {each: desk.describe(each).residency for each in "abcd"}
        desk.engine.check_invariants()
    assert where == {"a": "disk", "b": "disk", "c": "host", "d": "host"}
    for name in "abcd":
        assert torch.equal(desk.logits(name), expected[name])
    desk.close_all()


def test_a_full_host_sends_to_the_disk_and_a_full_disk_refuses() -> None:
    desk = made(host_memory=1 << 12, disk_memory=1 << 20)
    desk.open()
    desk.run(PROMPT, 2)
    assert desk.swap_out().session.residency == "disk"
    desk.close_all()
    tight = made(host_memory=1 << 12, disk_memory=1 << 12)
    tight.open()
    tight.run(PROMPT, 2)
    with pytest.raises(TierFull, match="The disk tier has no room"):
        tight.swap_out()
    assert tight.describe().residency == "resident"
    tight.close_all()
