"""The memory of columns that is kept for the next batch: taken again, never read before it is written, and there
for whatever else needs it."""

from __future__ import annotations

from functools import cache
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_jupyter.engine.memory.budget import Budget
from djinn_jupyter.engine.memory.kv.geometry import CacheGeometry
from djinn_jupyter.engine.passes import columns
from djinn_jupyter.engine.passes.columns import ColumnMemory, KeptMemory, bytes_of
from djinn_jupyter.errors import SlabFull
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.session.test_sharing import run_at_once
from tests.families import build

ALIKE = [tokens(9, seed=seed) for seed in range(4)]
RAGGED = [tokens(length, seed=length) for length in (3, 9, 14, 5)]
CPU = torch.device("cpu")


@pytest.fixture
def llama() -> Desk:
    return build_desk(build("llama", layers=2))


def kept_of(desk: Desk) -> KeptMemory:
    return desk.engine.runtime.sharing._memory


def test_the_next_batch_takes_the_memory_of_the_last(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    flat = columns._flat
    run_at_once(llama, mode="fast", prompts=ALIKE, new=6)
    llama.close_all()
    monkeypatch.setattr(columns, "_flat", lambda run, *given: (made.append(given[0]), flat(run, *given))[1])
    run_at_once(llama, mode="fast", prompts=ALIKE, new=6)
    assert made == []
    assert llama.engine.budget.held()["columns kept"] == kept_of(llama)._kept.nbytes > 0  # type: ignore[union-attr]
    llama.close_all()


@pytest.mark.parametrize("prompts", [ALIKE, RAGGED])
def test_what_an_earlier_batch_left_is_not_read(prompts: list[tuple[int, ...]]) -> None:
    desk = desk_of("gemma3_text")
    run_at_once(desk, mode="fast", prompts=[*ALIKE, *RAGGED], new=12)  # the trial, and more places than are needed
    desk.close_all()
    rows = run_at_once(desk, mode="fast", prompts=prompts, new=6)
    logits = [desk.logits(row.session) for row in rows]
    desk.close_all()
    assert kept_of(desk)._kept is not None
    for flat in chain.from_iterable(chain.from_iterable(kept_of(desk)._kept._runs)):  # type: ignore[union-attr]
        flat.fill_(torch.nan)
    for row, before in zip(run_at_once(desk, mode="fast", prompts=prompts, new=6), logits, strict=True):
        assert row.shared == 6
        assert torch.allclose(desk.logits(row.session), before, rtol=0, atol=1e-4)  # another row is computed alone
    desk.close_all()


def test_kept_memory_is_there_for_whatever_needs_it(llama: Desk) -> None:
    run_at_once(llama, mode="fast", prompts=ALIKE, new=6)
    llama.close_all()
    budget = llama.engine.budget
    asked = budget.free + sum(part.idle() for part in budget._parts.values())
    budget.take(asked, by=object())
    assert budget.held()["columns kept"] == 0
    budget.give_back(asked)
    llama.engine.check_invariants(contents=True)


def test_large_memory_is_returned_at_once(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_KEPT", 1)
    run_at_once(llama, mode="fast", prompts=ALIKE, new=6)
    assert llama.engine.budget.held()["columns kept"] == 0
    llama.close_all()


@cache
def geometry() -> CacheGeometry:
    return build_desk(build("gemma3_text")).engine.geometry


Verb = tuple[str, int]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 60)),
            st.tuples(st.just("give back"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["others", "release"]), st.integers(0, 60)),
        ),
        max_size=20,
    )
)
def test_what_is_taken_is_what_is_in_use_and_what_is_kept(verbs: list[Verb]) -> None:
    one = bytes_of(geometry(), 1)
    budget = Budget(100 * one)
    kept, used, others = KeptMemory(geometry(), CPU, budget), list[ColumnMemory](), 0
    for verb, number in verbs:
        if verb == "take":
            try:
                used.append(kept.take(number))
                assert used[-1].places >= number
            except SlabFull:
                assert budget.free < number * one
        elif verb == "give back" and number < len(used):
            kept.give_back(used.pop(number))
        elif verb == "release":
            kept.release()
        elif verb == "others":
            budget.give_back(others)
            others = 0
            try:
                budget.take(number * one, by=budget)
                others = number * one
            except SlabFull:
                assert budget.free + budget.held()["columns kept"] < number * one
        in_use = sum(memory.nbytes for memory in used)
        assert budget.taken == in_use + others + budget.held()["columns kept"] <= budget.limit
