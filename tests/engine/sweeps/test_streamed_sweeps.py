"""A model whose layers stream is swept as one that is all there, and crosses the link once for all cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.errors import SlabFull
from djinn_jupyter.methods.sweep.engine import sweep as sweeps
from tests.engine.desk import desk_of
from tests.engine.memory.weights.streaming import moved_by, streamed, streamed_desk
from tests.engine.sweeps.test_sweeps import swept, values

LAYERS = 5


def test_a_streamed_model_is_swept_in_one_crossing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, whole = streamed_desk("llama", layers=LAYERS), desk_of("llama", layers=LAYERS)
    expected = values(swept(whole, mode="exact"))
    assert torch.equal(values(swept(desk, mode="exact")), expected)
    reply = swept(desk)
    assert (reply.mode, reply.notes) == ("fast", ())
    assert (values(reply) - expected).abs().max() < 2e-5
    replies: list[Any] = []
    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 8)  # which is for models that are all there
    crossed = moved_by(desk, lambda: replies.append(swept(desk))) / streamed(desk).bytes_per_pass
    alone = 2 + len(replies[0].rechecked)  # two lines, and the cells computed again
    assert crossed <= alone + 2  # the cells, and what the ring fetches ahead
    assert (values(replies[0]) - expected).abs().max() < 2e-5
    desk.close_all()
    whole.close_all()


def test_a_chunk_that_finds_no_room_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = streamed_desk("llama", layers=LAYERS)
    expected, take, refused = values(swept(desk)), Reservation.take, []

    def scarce(room: Reservation, size: int) -> Any:
        if room.held and size > 30_000:
            refused.append(size)
            raise SlabFull("no room")
        return (yield from take(room, size))

    monkeypatch.setattr(sweeps, "CHUNK_ROWS", 8)
    monkeypatch.setattr(Reservation, "take", scarce)
    assert (values(swept(desk)) - expected).abs().max() < 2e-5
    assert refused
    desk.close_all()
