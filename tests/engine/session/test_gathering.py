"""Rows of a batch that meet: how they wait for each other, and the room that their columns have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from djinn_jupyter.engine.session import shared_prompts, sharing
from djinn_jupyter.engine.session.seats import driven
from djinn_jupyter.engine.wavefront import columns
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.session.test_sharing import run_at_once
from tests.families import build


def test_columns_have_room_for_the_tokens_to_come_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    of = columns.Columns.of

    def noted(geometry: Any, caches: Any, capacity: int, device: Any) -> Any:
        made.append(capacity)
        return of(geometry, caches, capacity, device)

    desk = build_desk(build("llama", layers=2))
    run_at_once(desk, mode="fast", prompts=[tokens(5, seed=1), tokens(9, seed=2)], new=2)  # the trial
    monkeypatch.setattr(columns.Columns, "of", noted)
    rows = run_at_once(desk, mode="fast", prompts=[tokens(5, seed=1), tokens(9, seed=2)], new=4)
    assert made == [9 + 3]  # the last token of a run begins no pass
    assert [row.shared for row in rows] == [4, 4]
    assert columns.capacity_for([5, 9], 1000) == 9 + columns.ROOM
    desk.close_all()


def test_one_of_the_runs_that_gather_counts_the_time_and_the_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llama = desk_of("llama")
    monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=lambda: 0.0))
    replies: list[Any] = []
    for number in range(3):
        llama.open(f"s{number}")
        llama.post(ask.Run(session=f"s{number}", tokens=tokens(9, seed=number), max_new_tokens=1, mode="fast"), replies)
    for _ in range(20):
        llama.engine.tick()
    assert sum(not job.waits for job in llama.engine.scheduler.jobs) == 1
    monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=lambda: 1.0))
    for _ in range(1000):
        llama.engine.tick()
    assert [reply.shared for reply in replies] == [1, 1, 1]
    llama.close_all()


def test_a_shared_prompt_gives_way_to_no_run_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """To one that is ready it does: `test_a_prompt_takes_turns_with_a_longer_one_layer_by_layer`."""
    llama, slices = desk_of("llama"), 0
    prompts = [tokens(9, seed=seed) for seed in range(3)]
    run_at_once(llama, mode="fast", prompts=prompts, new=1)  # the trial
    llama.close_all()

    def counted(step: Any, should_yield: Any) -> Any:
        nonlocal slices
        shared = driven(step, should_yield)
        while True:
            try:
                yield next(shared)
            except StopIteration as done:
                return done.value
            slices += 1

    monkeypatch.setattr(shared_prompts, "driven", counted)
    assert [row.shared for row in run_at_once(llama, mode="fast", prompts=prompts, new=1)] == [1, 1, 1]
    assert slices <= 1  # the run that looked at the clock learns that another leads; there are 8 layers
    llama.close_all()
