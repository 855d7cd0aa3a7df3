"""An engine whose freed memory is poisoned, a clock, and what tests of eviction do with them."""

from __future__ import annotations

import time
from typing import Any

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.residency.doubles import HeldMover
from tests.families import build

PROMPT = tokens(40)


class Clock:
    """A clock that starts now and advances as the test tells it."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now


def made(family: str = "llama", **config: Any) -> Desk:
    desk = build_desk(build(family), **config)
    for slab in desk.engine.slabs:
        slab.segments.poison = True
    return desk


def room_for_two(**config: Any) -> Desk:
    """An engine with room for two prompts of three."""
    model = build("llama")
    page = 8 * 2 * 2 * 16 * 8 * 4  # layers, key and value, heads, positions, features, bytes
    return build_desk(model, device_memory=sum(p.nbytes for p in model.parameters()) + 12 * page, **config)


def nothing_left(desk: Desk) -> bool:
    """True if all places of the tiers are free when no session is there."""
    while desk.engine.tick() or desk.engine.tiers.moving:
        desk.engine.mailbox.wait(0.05)
    desk.engine.storage_table.purge()
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
