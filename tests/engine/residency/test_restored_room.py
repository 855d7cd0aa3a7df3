"""A session that comes back has its room before it is entered: what fits alone is never refused beside others, whether
its engine died, its checkpoint is restored or it lay on the disk, and its bits are those that it had."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
DRAWN = st.lists(
    st.tuples(st.sampled_from([3, 30, 70, 100]), st.sampled_from(SITES), st.booleans()), min_size=2, max_size=6
)
FEWEST = 32  # pages, in which each of them fits alone, made again beside the values that its journal kept


@functools.lru_cache(maxsize=1)
def engines() -> tuple[Desk, Desk, Desk]:
    """An engine with little room, one that comes after it, and one with much."""
    folder = Path(tempfile.mkdtemp())
    few, next_one, roomy = (small(ROOMY, data_folder=folder / name) for name in ("few", "next", "roomy"))
    return few, next_one, roomy


def prepared(desk: Desk, drawn: list[tuple[int, str | None, bool]]) -> list[str]:
    """Run sessions to their stops, of which some are edited there, or to their ends. Return their names."""
    for number, (length, site, edited) in enumerate(drawn):
        name = f"s{number}"
        desk.open(name)
        if site is not None:
            desk.stop_at(site, "step == 1" if edited else None, name)
        reply = desk.run(tokens(length, seed=number), NEW, name)
        assert not failed([reply]), reply
        if edited and site in EDITED:
            desk.edit(Scale(factor=0.5), name)
    return [f"s{number}" for number in range(len(drawn))]


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
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=DRAWN, pages=st.integers(FEWEST, FEWEST + 4))
@example(drawn=[(100, "pattern.5", True), (100, "mlp_pre.3", True)] * 2, pages=FEWEST)
def test_what_fits_alone_comes_back_beside_others(way: str, drawn: list[Any], pages: int) -> None:
    few, after, roomy = engines()
    journal(few, Path(tempfile.mkdtemp()))
    for desk in (few, after):
        desk.engine.budget.limit = pages * PAGE
        for slab in desk.engine.slabs:
            slab.shrink()
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
    way: Callable[[Desk, Desk, list[str]], Desk], drawn: list[Any], few: Desk, after: Desk, roomy: Desk
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
