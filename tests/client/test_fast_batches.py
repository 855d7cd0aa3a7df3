"""Batches in mode `fast`: a token of all rows in one pass, whatever their lengths; what happens to a row is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import BatchInterrupted, Finished, Paused
from djinn_jupyter.engine.passes.columns import ColumnMemory, KeptMemory
from djinn_jupyter.errors import BatchEnded, SlabFull
from djinn_jupyter.wire import requests as ask
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread

PROMPT = [9, 8, 7, 21, 22]
NEW = 6
DRAWN: Any = {"max_new_tokens": NEW, "temperature": 1.5, "ignore_eos": True}


def close(row: object, alone: object) -> bool:
    """True where both drew the same tokens from logits that differ by rounding at most."""
    assert isinstance(row, Finished)
    assert isinstance(alone, Finished)
    return row.tokens == alone.tokens and np.allclose(row.logits, alone.logits, rtol=0, atol=1e-5)


def test_samples_share_all_their_passes_and_are_what_each_alone_samples(engine: RemoteEngine) -> None:
    rows = engine.session("a").run(PROMPT, samples=4, seed=5, mode="fast", **DRAWN)
    for number, row in enumerate(rows):
        assert close(row, engine.session("alone").run(PROMPT, seed=5 + number, **DRAWN))
    assert [row.shared for row in rows] == [NEW - 1] * 4  # type: ignore[union-attr]
    assert {one.name: one.exactness for one in engine.sessions()} == {
        "a": "exact",
        "alone": "exact",
        **{f"a/{i}": "fast" for i in range(4)},
    }


def test_prompts_of_all_lengths_share_passes(engine: RemoteEngine) -> None:
    prompts = [list(range(5, 6 + length)) for length in (1, 20, 7, 33)]
    rows = engine.session("a").run(prompts, max_new_tokens=90, ignore_eos=True, mode="fast")
    for prompt, row in zip(prompts, rows, strict=True):
        assert close(row, engine.session("alone").run(prompt, max_new_tokens=90, ignore_eos=True))
        assert row.shared > 80  # type: ignore[union-attr]


def test_the_rows_of_a_shared_pass_are_in_the_pages_and_all_is_given_back(engine: RemoteEngine, desk: Desk) -> None:
    rows = engine.session("a").run(PROMPT, samples=3, mode="fast", **DRAWN)
    desk.engine.check_invariants(contents=True)
    assert desk.engine.budget.held()["shared passes"] == 0
    more: Any = {"extend": True, "max_new_tokens": 3, "ignore_eos": True}
    for number, row in enumerate(rows):
        alone = engine.session("alone")
        alone.run(PROMPT, seed=number, **DRAWN)
        assert close(row.session.run(**more), alone.run(**more))  # type: ignore[attr-defined]


def test_a_row_that_stops_leaves_the_others_to_their_passes(engine: RemoteEngine) -> None:
    free = engine.session("a").run(PROMPT, samples=3, **DRAWN)
    session = engine.session("b")
    session.breakpoint("resid_post.1", when=f"step == 3 and token_id == {free[1].tokens[2]}")
    rows = session.run(PROMPT, samples=3, mode="fast", **DRAWN)
    assert isinstance(rows[1], Paused)
    assert (rows[1].site, rows[1].step) == ("resid_post.1", 3)
    assert rows[1].session.resume().tokens == free[1].tokens  # type: ignore[attr-defined]


def test_a_rule_in_one_row_is_applied_there_alone(engine: RemoteEngine, desk: Desk) -> None:
    rows = engine.session("a").run(PROMPT, samples=3, **{**DRAWN, "max_new_tokens": 1})
    rows[1].session.steer(1, dj.scale(0.2))  # type: ignore[attr-defined]
    replies: list[Any] = []
    for number in range(3):
        desk.post(
            ask.Run(session=f"a/{number}", extend=True, max_new_tokens=NEW, ignore_eos=True, mode="fast"), replies
        )
    while len(replies) < 3:
        desk.engine.tick()
    by_name = {reply.session: reply for reply in replies}
    assert [by_name[f"a/{number}"].shared for number in range(3)] == [NEW - 1, 0, NEW - 1]
    ruled = engine.session("alone")
    ruled.run(PROMPT, seed=1, **{**DRAWN, "max_new_tokens": 1})
    ruled.steer(1, dj.scale(0.2))
    assert by_name["a/1"].tokens == ruled.run(extend=True, max_new_tokens=NEW, ignore_eos=True).tokens


def test_a_row_closed_in_mid_pass_ends_alone(engine: RemoteEngine) -> None:
    def close_one(token: Any) -> None:
        if token.session in ("a/0", "a/2") and token.step == 2:
            engine.reach(token.session).close(force=True)

    with pytest.raises(BatchEnded, match="2 of 4 rows failed, a/0 first") as ended:
        engine.session("a").run(PROMPT, samples=4, mode="fast", on_token=close_one, **DRAWN)
    for number in (1, 3):
        assert close(ended.value.rows[number], engine.session("alone").run(PROMPT, seed=number, **DRAWN))


def test_an_interrupt_pauses_all_rows_and_each_goes_on(engine: RemoteEngine) -> None:
    def interrupt(token: Any) -> None:
        if token.step == 3 and token.session == "a/1":
            raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted) as broken:
        engine.session("a").run(PROMPT, samples=3, mode="fast", on_token=interrupt, **DRAWN)
    for number, row in enumerate(broken.value.rows):
        assert isinstance(row, Paused)
        assert close(row.session.resume(), engine.session("alone").run(PROMPT, seed=number, **DRAWN))  # type: ignore[attr-defined]


def test_without_memory_for_it_no_pass_is_shared(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*given: Any) -> ColumnMemory:
        raise SlabFull("There is none.")

    monkeypatch.setattr(KeptMemory, "take", none_left)
    rows = engine.session("a").run(PROMPT, samples=2, mode="fast", **DRAWN)
    assert [row.shared for row in rows] == [0, 0]  # type: ignore[union-attr]
    assert rows[0].tokens == engine.session("alone").run(PROMPT, **DRAWN).tokens


def test_a_planted_fault_of_the_columns_is_found_by_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmasked(self: Any) -> None:
        return None

    monkeypatch.setattr("djinn_jupyter.engine.passes.columns.Columns.mask", unmasked)
    with one_thread():
        desk = build_desk(build("llama", layers=2), tokenizer())
        with reached(desk) as [engine]:
            rows = engine.session("a").run([PROMPT, PROMPT[:2]], max_new_tokens=3, ignore_eos=True, mode="fast")
            assert [row.shared for row in rows] == [1, 1]  # type: ignore[union-attr] # their prompts, which have no mask
            assert "Passes over new tokens were computed alone" in rows[0].note  # type: ignore[union-attr]
            assert "other values among others than alone" in rows[0].note  # type: ignore[union-attr]
