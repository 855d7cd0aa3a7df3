"""States that grow with the line are thinned, the nearer to its end the denser; going back by tokens keeps its bits."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from djinn_jupyter.engine.memory.kv.geometry import LayerState
from djinn_jupyter.engine.passes.frame import States
from djinn_jupyter.engine.session import generation as generations
from djinn_jupyter.engine.session.generation import GROWING_KEPT, STATE_PERIOD
from tests.engine.desk import desk_of, tokens

FAMILY, NEW = "minimax_m3_vl_text:sparse", 80


def kept_after(length: int, needed: set[int], *, grows: bool) -> list[int]:
    desk = desk_of(FAMILY, layers=4)
    desk.open()
    desk.run(tokens(5), 0)
    generation = desk.session().generation
    generation.states.clear()
    for at in range(STATE_PERIOD, length + 1, STATE_PERIOD):
        generation.keep_states(at, states(at if grows else 8), needed)
    desk.close_all()
    return list(generation.states)


def states(size: int) -> States:
    return {0: LayerState(fields=(("rows", torch.zeros(size)),))}


def test_growing_states_are_few_and_reach_back_to_the_first() -> None:
    kept = kept_after(200 * STATE_PERIOD, set(), grows=True)
    assert len(kept) <= GROWING_KEPT
    assert kept[0] == STATE_PERIOD
    assert kept[-2:] == [199 * STATE_PERIOD, 200 * STATE_PERIOD]
    gaps = [after - before for before, after in pairwise(kept)]
    assert gaps == sorted(gaps, reverse=True)


def test_states_of_one_size_and_those_that_are_needed_all_stay() -> None:
    assert len(kept_after(200 * STATE_PERIOD, set(), grows=False)) == 200
    needed = {at * STATE_PERIOD for at in (3, 50, 51, 52)}
    assert needed <= set(kept_after(200 * STATE_PERIOD, needed, grows=True))


def test_back_by_tokens_from_thinned_states_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of(FAMILY, layers=4)
    monkeypatch.setattr(generations, "GROWING_KEPT", 2)
    desk.open()
    finished = desk.outcome(desk.run(tokens(26), NEW))
    kept = desk.session().generation.states
    assert len(kept) < NEW // STATE_PERIOD
    for count in (NEW // 2, 3):
        desk.back(count, by="token")
        assert torch.equal(desk.outcome(desk.resume()).logits, finished.logits)
    desk.close_all()
