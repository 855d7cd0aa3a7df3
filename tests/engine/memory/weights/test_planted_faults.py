"""Faults that a streaming engine could have, planted one by one: each is caught, by the accounting or by the bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.weights.streamed import Lease, Ring, RingBroken, Slot
from djinn_jupyter.errors import DjinnError, ModelRefused
from tests.engine.desk import Desk, Outcome, desk_of, tokens
from tests.engine.memory.weights.streaming import SlowCopyEngine, streamed, streamed_desk

PROMPT = tokens(16)
Patch = pytest.MonkeyPatch


@pytest.fixture
def plain() -> Iterator[Outcome]:
    desk = desk_of("llama")
    desk.open()
    yield desk.outcome(desk.run(PROMPT, 4))
    desk.close_all()


@pytest.fixture
def desk() -> Desk:
    """Seven layers stream through two slots, so that none comes into the same slot twice in a row."""
    desk = streamed_desk("llama", tuple(range(7)), copy_engine=SlowCopyEngine())
    desk.open()
    return desk


def run(desk: Desk) -> Outcome:
    return desk.outcome(desk.run(PROMPT, 4))


def blind(monkeypatch: Patch) -> None:
    """Take out the check of leases, so that the bits alone tell."""

    def give_back(ring: Ring, lease: Lease) -> None:
        for slot in ring._slots:
            slot.users = 0

    monkeypatch.setattr(Ring, "give_back", give_back)


def test_without_a_fault_the_bits_are_right(desk: Desk, plain: Outcome) -> None:
    assert run(desk) == plain
    assert run(desk) == plain


def reused_in_use(monkeypatch: Patch) -> None:
    """Fill the slot that is being computed with."""

    def victim(ring: Ring, now: int, keep: Any) -> Slot:
        return next((slot for slot in ring._slots if slot.users), ring._slots[0])

    monkeypatch.setattr(Ring, "_victim", victim)


def loaded_for_ever(monkeypatch: Patch) -> None:
    """Count a block that was loaded once as there, as in the system that this one succeeds."""
    once: dict[int, Slot] = {}
    holding = Ring._holding

    def remembered(ring: Ring, block: int) -> Slot | None:
        found = holding(ring, block)
        if found is not None:
            once[block] = found
        return once.get(block)

    monkeypatch.setattr(Ring, "_holding", remembered)


def stale_generation(monkeypatch: Patch) -> None:
    """Use the lease of an earlier pass again."""
    kept: dict[int, Lease] = {}
    take = Ring.take

    def again(ring: Ring, block: int) -> Lease:
        fresh = take(ring, block)
        return kept.setdefault(block, fresh)

    monkeypatch.setattr(Ring, "take", again)


FAULTS = [reused_in_use, loaded_for_ever, stale_generation]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_books_find_it(desk: Desk, monkeypatch: Patch, fault: Callable[[Patch], None]) -> None:
    fault(monkeypatch)
    with pytest.raises(DjinnError, match="RingBroken"):
        desk.run(PROMPT, 12)
    assert desk.session().state == "idle"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_bits_find_it(desk: Desk, plain: Outcome, monkeypatch: Patch, fault: Callable[[Patch], None]) -> None:
    fault(monkeypatch)
    blind(monkeypatch)
    came = [run(desk) for _ in range(3)]
    assert any(outcome != plain for outcome in came)


def test_a_missing_wait(desk: Desk, plain: Outcome) -> None:
    """A weight that had not arrived when the pass used it is NaN."""
    copy_engine = streamed(desk).copy_engine
    assert isinstance(copy_engine, SlowCopyEngine)
    copy_engine.wait = lambda arrival: None  # type: ignore[method-assign]
    assert run(desk) != plain
    assert desk.logits().isnan().any()


def test_a_missing_wait_is_refused_at_load() -> None:
    copy_engine = SlowCopyEngine()
    arrive, waits = copy_engine.wait, iter([True])

    def only_the_first(arrival: Any) -> None:  # that of what stays
        if next(waits, False):
            arrive(arrival)

    copy_engine.wait = only_the_first  # type: ignore[method-assign]
    with pytest.raises(ModelRefused):
        streamed_desk("llama", copy_engine=copy_engine)


def test_a_hollow_layer_that_is_computed_with(desk: Desk) -> None:
    """A layer whose weights were never asked for."""
    layer = desk.engine.anatomy.layers[3]
    weights = next(layer.parameters())
    assert torch.mm(torch.ones((1, weights.shape[1]), device=weights.device), weights.T).isnan().all()


def test_all_of_them_are_errors_of_ours() -> None:
    assert issubclass(RingBroken, DjinnError)
