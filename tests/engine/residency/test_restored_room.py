"""A session that comes back has its room before it is entered: what fits alone is never refused beside others, whether
its engine died, its checkpoint is restored or it lay on the disk, and its bits are those that it had."""

from __future__ import annotations

import bisect
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from djinn_jupyter.errors import SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, tokens
from tests.engine.persistence.crashes import crashed, forget, journal, written
from tests.engine.residency.evicting import nothing_left
from tests.engine.residency.test_crowded import ROOMY, failed
from tests.engine.residency.test_pressure import PAGE, small, until

NEW = 6
EDITED = ("resid_post.2", "mlp_pre.3")
SITES = (None, "resid_post.2", "mlp_pre.3", "pattern.5", "logits")
Drawn = tuple[int, str | None, str]  # the tokens of a prompt, where it stops, and what is done there
DONE = ("looked at", "edited later", "edited", "edited, gone on and run on")
DRAWN = st.lists(
    st.tuples(st.sampled_from([3, 30, 70, 100]), st.sampled_from(SITES), st.sampled_from(DONE)), min_size=1, max_size=6
)
RULED = ("resid_post.1", "attn_out.3", "mlp_out.3", "resid_post.6")  # before and behind stops, in their layer too
STEP = 8 << 10  # bytes, to which the lowest limit is found


@functools.lru_cache(maxsize=1)
def engines() -> tuple[Desk, Desk, Desk]:
    """An engine with little room, one that comes after it, and one with much."""
    folder = Path(tempfile.mkdtemp())
    few, next_one, roomy = (small(ROOMY, data_folder=folder / name) for name in ("few", "next", "roomy"))
    return few, next_one, roomy


def work(desk: Desk, name: str, drawn: Drawn) -> None:
    """Run a session to its stop, which may be edited, or to its end."""
    length, site, done = drawn
    desk.open(name)
    if site is not None:
        desk.stop_at(site, "step == 1" if done == "edited later" else "step == 0", name)
    desk.run(tokens(length, seed=length), NEW, name)
    if done.startswith("edited") and site in EDITED:
        desk.edit(Scale(factor=0.5), name)
    if done.endswith("run on"):
        if site is not None:
            for ruled in RULED:
                desk.steer(ruled, name=name)
            desk.resume(name)
        desk.run(tokens(9, seed=length), NEW, name, extend=True)


def prepared(desk: Desk, drawn: list[Drawn]) -> list[str]:
    for number, one in enumerate(drawn):
        work(desk, f"s{number}", one)
    return [f"s{number}" for number in range(len(drawn))]


def goes_on(desk: Desk, name: str) -> list[Any]:
    """Look at a stop and go on from it to the end."""
    return [desk.ask(ask.Inspect(session=name)), desk.resume(name, free=True)]


def limit(desk: Desk, size: int) -> None:
    desk.engine.budget.limit = size
    for slab in desk.engine.slabs:
        slab.shrink()


@functools.cache
def lowest(drawn: Drawn) -> int:
    """Return the lowest limit, to a STEP, at which a session alone has all this room."""
    desk = engines()[0]

    def fits(steps: int) -> bool:
        limit(desk, steps * STEP)
        try:
            work(desk, "alone", drawn)
            return desk.session("alone").state != "paused" or not failed(goes_on(desk, "alone"))
        except SlabFull:
            return False
        finally:
            desk.close_all()

    return STEP * bisect.bisect_left(range(ROOMY * PAGE // STEP), True, key=fits)


def all_at_once(desk: Desk, requests: list[ask.Request]) -> list[Any]:
    replies: list[list[Any]] = [[] for _ in requests]
    for request, reply in zip(requests, replies, strict=True):
        desk.post(request, reply)
    until(desk, *replies)
    return [reply for (reply,) in replies]


def died(few: Desk, after: Desk, names: list[str]) -> Desk:
    """Let the next engine find the sessions in the journal."""
    written(few)
    folder = few.engine.persistence._journals.parent
    journal(after, crashed(folder, Path(tempfile.mkdtemp()) / "dead"))
    assert set(after.engine.sessions) == set(names)
    return after


def restored(few: Desk, after: Desk, names: list[str]) -> Desk:
    """Save checkpoints, close the sessions, and restore all at once."""
    for name in names:
        few.ask(ask.SaveCheckpoint(session=name, name=name, replace=True))
    few.close(*names)
    assert not failed(all_at_once(few, [ask.RestoreCheckpoint(session=name, name=name) for name in names]))
    return few


def lay_on_disk(few: Desk, after: Desk, names: list[str]) -> Desk:
    for name in names:
        few.ask(ask.SwapOut(session=name, tier="disk"))
    return few


WAYS: dict[str, Callable[[Desk, Desk, list[str]], Desk]] = {"died": died, "restored": restored, "disk": lay_on_disk}


@pytest.mark.parametrize("way", WAYS)
@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)
@given(drawn=DRAWN, more=st.integers(0, 4))
@example(drawn=[(100, "pattern.5", "looked at")], more=0)
@example(drawn=[(100, "mlp_pre.3", "edited, gone on and run on")], more=0)
@example(drawn=[(100, "pattern.5", "looked at"), (100, "mlp_pre.3", "edited")] * 2, more=0)
def test_what_fits_alone_comes_back_beside_others(way: str, drawn: list[Drawn], more: int) -> None:
    """From the lowest limit on at which each of them fits."""
    few, after, roomy = engines()
    size = max(map(lowest, drawn)) + more * STEP
    journal(few, Path(tempfile.mkdtemp()))
    for desk in (few, after):
        limit(desk, size)
    try:
        come_back(WAYS[way], drawn, few, after, roomy)
    finally:
        for desk in (few, after, roomy):
            if desk.engine.persistence.journal is not None:
                forget(desk)
            desk.close_all()
    assert nothing_left(few)
    assert nothing_left(after)


def come_back(
    way: Callable[[Desk, Desk, list[str]], Desk], drawn: list[Drawn], few: Desk, after: Desk, roomy: Desk
) -> None:
    names = prepared(few, drawn)
    prepared(roomy, drawn)
    here = way(few, after, names)
    stopped = [name for name in names if here.session(name).state == "paused"]
    looks: list[ask.Request] = [ask.Inspect(session=name) for name in stopped]
    for name, reply in zip(stopped, all_at_once(here, looks), strict=True):
        assert not failed([reply]), reply
        assert reply.snapshot.value == roomy.ask(ask.Inspect(session=name)).snapshot.value
    ends = all_at_once(here, [ask.Resume(session=name, free=True) for name in stopped])
    assert not failed(ends), ends
    for name in names:
        if name in stopped:
            roomy.resume(name, free=True)
        assert here.session(name).tokens == roomy.session(name).tokens
        assert torch.equal(here.logits(name), roomy.logits(name))
