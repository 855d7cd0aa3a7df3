"""The time of a move and the time of its copies are two: a batch waits in the queue and for what is computed."""

from __future__ import annotations

import random

import pytest
import torch

from djinn_jupyter.engine.memory.offload import mover
from djinn_jupyter.engine.memory.offload.mover import Copy, MoverBatch, perform
from djinn_jupyter.engine.memory.offload.spans import Span
from djinn_jupyter.engine.session import residence
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk
from tests.engine.residency.evicting import PROMPT, held, post, until_idle
from tests.streams import Gpu, Step, instead_of_cuda

QUEUED = 100.0  # seconds that the batches stay in the queue


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_moves_copies_take_less_than_the_move_that_was_queued(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    now, monotonic = [0.0], residence.time.monotonic
    monkeypatch.setattr(residence.time, "monotonic", lambda: monotonic() + now[0])
    desk.stop_at(4)
    desk.run(PROMPT, 3)
    if way == "in":
        desk.swap_out()
    holding = held(desk)
    post(desk, ask.SwapOut(session="a") if way == "out" else ask.SwapIn(session="a"))
    now[0] = QUEUED
    holding.finish()
    until_idle(desk)
    moved = desk.session().residence.last_transfer
    assert (moved.direction, moved.bytes_moved > 0) == (way, True)
    assert moved.seconds >= QUEUED > moved.copy_seconds > 0


def test_what_was_not_copied_took_no_time_of_the_mover(desk: Desk) -> None:
    desk.run(PROMPT, 2)
    desk.swap_out()
    desk.swap_in()
    desk.swap_out()
    moved = desk.session().residence.last_transfer
    assert (moved.bytes_moved, moved.copy_seconds) == (0, None)


def test_on_a_gpu_the_wait_for_computing_is_no_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of the copy's time lie behind the one that the stream waits for."""
    gpu = Gpu(random.Random(0))
    instead_of_cuda(monkeypatch, gpu)
    side, order = gpu.new_stream(), list[str]()
    ready = torch.cuda.Event()
    gpu.current.steps.append(Step(lambda: order.append("computed")))
    ready.record(gpu.current)
    timed = mover.timed_on

    def noted(stream: object) -> object:
        gpu.streams[-1].steps.append(Step(lambda: order.append("timed")))
        return timed(stream)

    monkeypatch.setattr(mover, "timed_on", noted)
    source, target = (Span(memory=torch.full((8,), n, dtype=torch.uint8), start=0, nbytes=8) for n in (1, 0))
    moved = perform(MoverBatch(moves=(Copy(source=source, target=target),), urgent=True, ready=(ready,)), side)
    assert (order, moved.error, moved.seconds) == (["computed", "timed", "timed"], None, 1e-3)
