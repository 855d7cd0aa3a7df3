"""Faults of weights that stream: copied once and never again, and sent for in the order of text."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_jupyter.engine.weights.ring import Order, Ring, Slot
from djinn_jupyter.errors import DjinnError
from tests.engine.desk import Desk, desk_of, tokens
from tests.weights.streaming import moved_by, streamed, streamed_desk

PROMPT = tokens(16)
NEW = 3
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def desk() -> Desk:
    """Twelve layers, so that text and numbers are ordered differently."""
    desk = streamed_desk("llama", layers=12)
    desk.open()
    return desk


def stream(desk: Desk) -> None:
    """Every pass moves what streams once, no more and no less, and makes the bits of weights that are all there."""
    plain = desk_of("llama", layers=12)
    plain.open()
    expected = plain.outcome(plain.run(PROMPT, NEW))
    whole = streamed(desk).bytes_per_pass
    desk.run(PROMPT, 1)  # learns the order
    for _ in range(2):
        assert moved_by(desk, lambda: desk.run(PROMPT, NEW)) == NEW * whole
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected


def test_blocks_sorted_as_text(desk: Desk, monkeypatch: Patch) -> None:
    """0, 1, 10, 11, 2: what is not there when it is needed is fetched, so the bits are right; the bytes tell."""
    stream(desk)
    after = Order.after

    def sorted_as_text(order: Order, block: int, count: int) -> list[int]:
        if not order._place:
            return after(order, block, count)
        row: list[Any] = sorted(order._seen, key=str)
        return [row[(row.index(block) + ahead) % len(row)] for ahead in range(1, count + 1)]

    monkeypatch.setattr(Order, "after", sorted_as_text)
    with pytest.raises(AssertionError):
        stream(desk)


def test_a_ring_that_copies_nothing_after_the_first_pass(desk: Desk, monkeypatch: Patch) -> None:
    """It sends for what it needs and nothing is carried: the bytes tell. Or what came once counts as there: the check
    of leases finds it."""
    once, holding, carry = {}, Ring._holding, streamed(desk).ring.carrier.carry
    with monkeypatch.context() as patch:
        patch.setattr(streamed(desk).ring.carrier, "carry", lambda transfers, *others: carry([], *others))
        with pytest.raises(AssertionError):
            stream(desk)

    def remembered(ring: Ring, block: int) -> Slot | None:
        found = holding(ring, block)
        if found is not None:
            once[block] = found
        return once.get(block)

    monkeypatch.setattr(Ring, "_holding", remembered)
    with pytest.raises(DjinnError, match="RingBroken"):
        stream(desk)
