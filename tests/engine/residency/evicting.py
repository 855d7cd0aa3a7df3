"""An engine whose freed memory is poisoned, and what tests of eviction do with it."""

from __future__ import annotations

from typing import Any

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.residency.doubles import HeldMover
from tests.families import build

PROMPT = tokens(40)


def made(family: str = "llama", **config: Any) -> Desk:
    desk = build_desk(build(family), **config)
    for slab in desk.engine.slabs:
        slab.segments.poison = True
    return desk


def nothing_left(desk: Desk) -> bool:
    """True if all places of the tiers are free when no session is there."""
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)
    desk.engine.blobs.purge()
    return all(tier.pages == 0 for tier in desk.engine.tiers.statistics())


def held(desk: Desk) -> HeldMover:
    """Hold copies from now on until the test ends them."""
    mover = HeldMover(desk.engine.mailbox.post)
    desk.engine.tiers.mover = mover
    return mover


def post(desk: Desk, request: ask.Request) -> list[Any]:
    replies: list[Any] = []
    desk.post(request, replies)
    while desk.engine.tick():
        pass
    return replies


def until_idle(desk: Desk) -> None:
    while desk.engine.tick():
        pass
