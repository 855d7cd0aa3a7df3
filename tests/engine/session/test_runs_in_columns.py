"""Runs of shared prompts go on in columns, which are filled from their pages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.engine.memory.kv.pages import WorkingCopy
from djinn_jupyter.engine.passes.columns import ColumnMemory, Columns
from djinn_jupyter.engine.session import shared_prompts
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.session.test_sharing import run_at_once
from tests.families import build

ALIKE, NEW = [tokens(9, seed=seed) for seed in range(5)], 6


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The lines of all columns that are copied from pages, and their capacity."""
    lines: list[tuple[int, int]] = []
    fill = Columns.fill

    def noted(self: Columns, caches: Any) -> None:
        lines.append((len(caches), self.capacity))
        fill(self, caches)

    monkeypatch.setattr(Columns, "fill", noted)
    return lines


def require_as_alone(desk: Desk, rows: list[Any], prompts: list[tuple[int, ...]]) -> None:
    logits = [desk.logits(row.session) for row in rows]
    for number, row in enumerate(rows):
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], NEW, "alone").tokens
        assert torch.allclose(logits[number], desk.logits("alone"), rtol=0, atol=1e-4)
    desk.close_all()


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "bloom", "gemma4_text:shared"])
def test_prompts_of_one_length_are_what_each_is_alone_and_go_on_so(family: str, copied: list[tuple[int, int]]) -> None:
    desk = desk_of(family)
    run_at_once(desk, mode="fast", prompts=ALIKE, new=2)  # the trial
    desk.close_all()
    copied.clear()
    rows = run_at_once(desk, mode="fast", prompts=ALIKE, new=NEW)
    assert [row.shared for row in rows] == [NEW] * len(ALIKE)
    assert copied == [(len(ALIKE), 9 + NEW - 1)]
    desk.engine.check_invariants(contents=True)
    assert desk.engine.budget.held()["shared passes"] == 0
    require_as_alone(desk, rows, ALIKE)


def test_prompts_of_several_lengths_are_joined_from_their_pages(llama: Desk, copied: list[tuple[int, int]]) -> None:
    prompts = [*ALIKE[:2], tokens(5)]
    run_at_once(llama, mode="fast", prompts=prompts, new=2)
    llama.close_all()
    copied.clear()
    rows = run_at_once(llama, mode="fast", prompts=prompts, new=NEW)
    assert copied == [(3, 9 + NEW - 1)]
    require_as_alone(llama, rows, prompts)


def test_the_columns_have_the_rows_of_the_pages_also_of_a_prompt_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All shared rows are off by a rounding here, and the drawn one's pages have what it is alone."""
    desk = build_desk(build("llama", layers=4))
    run_at_once(desk, mode="fast", prompts=ALIKE, new=2)
    desk.close_all()
    planted = shared_prompts.prompt_logits

    def off(sections: Any, columns: Columns, prompts: Any, *, spoilt: Any = None) -> Any:
        logits_BV = yield from planted(sections, columns, prompts, spoilt=spoilt)
        for keys, values in (pair for run in columns.runs for pair in run):
            keys.mul_(1 + 1e-6), values.mul_(1 + 1e-6)
        return logits_BV

    monkeypatch.setattr(shared_prompts, "prompt_logits", off)
    monkeypatch.setattr(shared_prompts, "CHECKED_OF", 1)
    begin(desk)
    shared = desk.engine.runtime.sharing
    while shared._columns is None:
        desk.engine.tick()
    generations = [seat.session.generation for seat in shared._members]
    assert sum(one is not None and one.difference is not None for one in generations) == 1
    for line, seat in enumerate(shared._members):
        length = seat.session.cache.length
        fresh = Columns(ColumnMemory(desk.engine.geometry, length, desk.engine.forward.device), [length], length)
        fresh.fill([seat.session.cache])
        for pairs, run in zip(shared._columns.runs, fresh.runs, strict=True):
            for joined, paged in zip(pairs, run, strict=True):
                assert torch.equal(joined[0][:, line, :, :length], paged[0][:, 0])
                assert torch.equal(joined[1][:, line, :, :length], paged[1][:, 0])
    desk.close_all()


def begin(desk: Desk) -> list[Any]:
    replies: list[Any] = []
    for number, prompt in enumerate(ALIKE):
        desk.open(f"s{number}")
        run = ask.Run(session=f"s{number}", tokens=prompt, max_new_tokens=NEW, ignore_eos=True, mode="fast")
        desk.post(run, replies)
    return replies


@pytest.mark.parametrize("ticks", range(0, 30, 12))
def test_a_row_closed_at_any_moment_leaves_the_others_and_gives_all_back(llama: Desk, ticks: int) -> None:
    run_at_once(llama, mode="fast", prompts=ALIKE, new=2)
    llama.close_all()
    replies = begin(llama)
    for _ in range(ticks):
        llama.engine.tick()
    llama.close("s2")
    while len(replies) < len(ALIKE):
        llama.engine.tick()
    assert llama.engine.budget.held()["shared passes"] == 0
    ended = {reply.session: reply.tokens for reply in replies if hasattr(reply, "tokens")}
    for number in (0, 1, 3, 4):
        llama.open("alone")
        assert ended[f"s{number}"] == llama.run(ALIKE[number], NEW, "alone").tokens
    llama.close_all()


def test_prompts_for_one_token_take_no_columns_for_more(llama: Desk, copied: list[tuple[int, int]]) -> None:
    run_at_once(llama, mode="fast", prompts=ALIKE, new=2)
    llama.close_all()
    copied.clear()
    run_at_once(llama, mode="fast", prompts=ALIKE, new=1)
    assert copied == []
    llama.close_all()
    run_at_once(llama, mode="fast", prompts=ALIKE, new=NEW)
    assert copied == [(len(ALIKE), 9 + NEW - 1)]
    llama.close_all()


def test_a_row_that_is_computed_again_alone_has_a_working_copy_of_its_own_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on in the columns, and needs none for the tokens that come."""
    made: list[int] = []
    begun = WorkingCopy.__init__

    def noted(copy: WorkingCopy, table: Any, base: int, capacity: int, *given: Any) -> None:
        made.append(capacity)
        begun(copy, table, base, capacity, *given)

    desk = build_desk(build("llama", layers=2))
    run_at_once(desk, mode="fast", prompts=ALIKE, new=1)  # the trial
    desk.close_all()
    desk.engine.runtime.sharing.prompts._unchecked = shared_prompts.CHECKED_OF
    monkeypatch.setattr(WorkingCopy, "__init__", noted)
    rows = run_at_once(desk, mode="fast", prompts=ALIKE, new=2)
    assert [row.largest_difference is not None for row in rows].count(True) >= 1
    assert made == [9, 10]  # of a prompt, and of the first shared token
    desk.close_all()
