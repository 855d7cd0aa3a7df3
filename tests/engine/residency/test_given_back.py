"""Memory of idle sessions that left goes back to the system, what the C library kept of it too."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.engine.memory.weights.host_weights import HOST
from djinn_jupyter.engine.residency import eviction
from tests.engine.residency.evicting import PROMPT, Clock, made, until_idle


def test_the_heap_goes_back_once_after_sessions_have_left_by_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(eviction, "return_freed", given.append)
    desk, clock = made(idle_swap_seconds=5.0), Clock()
    idle = desk.engine.residency.eviction
    monkeypatch.setattr(idle, "_clock", clock)
    desk.open()
    desk.run(PROMPT, 2)
    idle.attend()
    clock.now += 6.0
    idle.attend()
    while desk.describe().residency != "host":
        if not desk.engine.tick():
            desk.engine.mailbox.wait(0.05)
    idle.attend()
    assert given == []
    clock.now += eviction.GIVE_BACK_SECONDS
    idle.attend()
    idle.attend()
    assert given == [HOST]
    until_idle(desk)
