"""Batches: rows in sessions of their own, each bit for bit the run that it would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import BatchInterrupted, Finished, Paused
from djinn_jupyter.errors import BatchEnded, IllegalMove, SessionsWouldSuffer, SlabFull, UnknownSession, UsageError
from djinn_jupyter.wire import requests as ask
from tests.client.reached import reached
from tests.engine.desk import Desk, build_desk
from tests.engine.words import tokenizer
from tests.families import build
from tests.threads import one_thread

PROMPT = [9, 8, 7, 21, 22]
DRAWN: Any = {"max_new_tokens": 6, "temperature": 1.5, "ignore_eos": True}


def alike(row: object, alone: object) -> bool:
    """True where both ended alike, with the same tokens and the same bits of logits."""
    assert isinstance(row, Finished)
    assert isinstance(alone, Finished)
    same = (row.tokens, row.reason, row.logprobs) == (alone.tokens, alone.reason, alone.logprobs)
    return same and np.array_equal(row.logits, alone.logits)


def test_sample_i_is_what_seed_plus_i_alone_samples(engine: RemoteEngine) -> None:
    rows = engine.session("a").run(PROMPT, samples=4, seed=5, **DRAWN)
    assert [row.session.name for row in rows] == ["a/0", "a/1", "a/2", "a/3"]
    for number, row in enumerate(rows):
        alone = engine.session("alone").run(PROMPT, seed=5 + number, **DRAWN)
        assert alike(row, alone)
        assert (row.passes, row.layers_run) == (alone.passes, alone.layers_run)  # type: ignore[union-attr]
    assert len({row.tokens for row in rows}) > 1


def test_samples_run_their_prompt_once(engine: RemoteEngine, desk: Desk) -> None:
    session = engine.session("a")
    before = desk.engine.counters.passes
    session.run(PROMPT, samples=4, **DRAWN)
    assert desk.engine.counters.passes - before == 1 + 4 * (DRAWN["max_new_tokens"] - 1)


def test_prompts_of_all_lengths_are_run_each_as_alone(engine: RemoteEngine) -> None:
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, 31, 33, 35]]
    rows = engine.session("a").run(prompts, max_new_tokens=3, ignore_eos=True)
    assert [row.prompt_tokens for row in rows] == [tuple(prompt) for prompt in prompts]  # type: ignore[union-attr]
    for prompt, row in zip(prompts, rows, strict=True):
        assert alike(row, engine.session("alone").run(prompt, max_new_tokens=3, ignore_eos=True))


def test_texts_are_prompts_and_samples_of_each_follow_one_another(engine: RemoteEngine) -> None:
    rows = engine.session("a").run(["w9 w8", "w21"], samples=2, seed=3, **DRAWN)
    texts = [row.prompt_text for row in rows]
    assert texts == [rows[0].prompt_text] * 2 + [rows[2].prompt_text] * 2
    assert alike(rows[3], engine.session("alone").run("w21", seed=6, **DRAWN))


def test_a_stop_in_one_row_halts_no_other_and_it_goes_on_as_alone(engine: RemoteEngine) -> None:
    free = engine.session("a").run(PROMPT, samples=3, **DRAWN)
    last = free[1].tokens[2]
    others = [row for row in free if row.tokens[2] != last]
    session = engine.session("b")
    session.breakpoint("resid_post.1", when=f"step == 3 and token_id == {last}")
    rows = session.run(PROMPT, samples=3, **DRAWN)
    assert isinstance(rows[1], Paused)
    assert (rows[1].site, rows[1].step) == ("resid_post.1", 3)
    assert others
    assert [alike(row, was) for row, was in zip(rows, free, strict=True) if was in others] == [True] * len(others)
    kept = rows[1].session.fork("kept")
    kept.edit(dj.scale(0.0))
    assert alike(rows[1].session.resume(), free[1])


def test_a_stop_in_the_prompt_is_met_by_every_row(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.breakpoint("resid_post.1", when="step == 0")
    rows = session.run(PROMPT, samples=3, seed=1, **DRAWN)
    assert [(row.site, row.step) for row in rows] == [("resid_post.1", 0)] * 3  # type: ignore[union-attr]
    rows[2].session.edit(dj.scale(0.5))
    ends = [row.session.resume() for row in rows]
    assert alike(ends[1], engine.session("alone").run(PROMPT, seed=2, **DRAWN))
    assert not np.array_equal(ends[2].logits, ends[1].logits)  # type: ignore[union-attr]


def test_a_stop_is_gone_on_from_many_times_and_stays(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.breakpoint("resid_post.1", when="step == 0")
    stop = session.run(PROMPT, **DRAWN)
    rows = session.resume(samples=3, seed=4)
    for number, row in enumerate(rows):
        assert alike(row, engine.session("alone").run(PROMPT, seed=4 + number, **DRAWN))
    assert session.stop.reply == stop.reply  # type: ignore[union-attr]
    back = rows[2].session.back()
    assert back.step == 0
    assert rows[2].session.resume().tokens == rows[2].tokens  # type: ignore[union-attr]


def test_rows_have_the_rules_of_their_session(engine: RemoteEngine) -> None:
    ruled = engine.session("alone")
    ruled.steer(1, dj.scale(0.2))
    session = engine.session("a")
    session.steer(1, dj.scale(0.2))
    for number, row in enumerate(session.run(PROMPT, samples=2, **DRAWN)):
        assert alike(row, ruled.run(PROMPT, seed=number, **DRAWN))


def test_a_line_is_extended_in_many_ways(engine: RemoteEngine) -> None:
    session, alone = engine.session("a"), engine.session("alone")
    for one in (session, alone):
        one.run(PROMPT, max_new_tokens=2, ignore_eos=True)
    rows = session.run(extend=True, samples=2, **DRAWN)
    assert alike(rows[0], alone.run(extend=True, **DRAWN))
    assert rows[0].tokens != rows[1].tokens


def test_a_line_run_for_no_token_goes_on_from_its_logits_and_back_into_its_prompt(engine: RemoteEngine) -> None:
    session, alone = engine.session("a"), engine.session("alone")
    session.run(PROMPT, max_new_tokens=0)
    done = session.run(extend=True, seed=2, **DRAWN)
    assert alike(done, alone.run(PROMPT, seed=2, **DRAWN))
    count = len(done.tokens)
    for one in (session, alone):
        one.back(count, by="token")
    assert np.array_equal(session.inspect("resid_pre.0").value, alone.inspect("resid_pre.0").value)
    assert session.resume().tokens == alone.resume().tokens == done.tokens  # type: ignore[union-attr]


def test_the_rows_of_an_earlier_batch_end_and_what_was_read_of_them_stays(engine: RemoteEngine) -> None:
    session = engine.session("a")
    first = session.run(PROMPT, samples=3, **DRAWN)
    logits = [row.session.logits() for row in first]
    session.run(PROMPT, samples=2, seed=9, **DRAWN)
    assert {one.name for one in engine.sessions()} == {"a", "a/0", "a/1"}
    assert all(np.array_equal(row.logits, was) for row, was in zip(first, logits, strict=True))  # type: ignore[union-attr]


def test_rows_without_a_reference_are_not_read_for_the_next_batch(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is still referenced has its logits fetched before its session ends. Replies stay here, as those of a
    socket do in circles until they are collected."""
    session, stay = engine.session("a"), list[Any]()
    asked = session.channel.ask

    def kept_reply(request: ask.Request) -> Any:
        stay.append(asked(request))
        return stay[-1]

    monkeypatch.setattr(session.channel, "ask", kept_reply)
    session.run([PROMPT] * 3, mode="fast", **DRAWN)
    kept = session.run([PROMPT] * 2, mode="fast", **DRAWN)
    assert logits_read(session) == []
    session.run([PROMPT] * 2, mode="fast", **DRAWN)
    assert logits_read(session) == ["a/0", "a/1"]
    assert all(len(row.logits) for row in kept)  # type: ignore[union-attr]


def logits_read(session: Any) -> list[str]:
    return [one.session for one in session.channel.requests if isinstance(one, ask.ReadLogits)]


def test_a_row_of_another_kernel_is_not_replaced(desk: Desk) -> None:
    with reached(desk, "one", "two") as [one, two]:
        two.session("a/0")
        with pytest.raises(SessionsWouldSuffer):
            one.session("a").run(PROMPT, samples=2, **DRAWN)
        assert {session.name for session in one.sessions()} == {"a", "a/0"}
        with pytest.raises(
            SessionsWouldSuffer, match=r"to close it all the same, add --force \(in Python force=True\)"
        ):
            one.session("a").run([PROMPT], max_new_tokens=0)
        assert alike(
            one.session("a").run([PROMPT], max_new_tokens=0, force=True)[0],
            one.session("b").run(PROMPT, max_new_tokens=0),
        )


def test_a_row_of_another_kernel_is_refused_before_any_of_ours_ends(desk: Desk) -> None:
    with reached(desk, "one", "two") as [one, two]:
        session = one.session("a")
        session.run([PROMPT] * 3, max_new_tokens=0)
        one.session("a/1").close()
        two.session("a/1")
        with pytest.raises(SessionsWouldSuffer):
            session.run([PROMPT], max_new_tokens=0)
        assert {session.name for session in one.sessions()} == {"a", "a/0", "a/1", "a/2"}


def test_rows_of_notebooks_of_one_stem_have_names_of_their_own(desk: Desk) -> None:
    notebooks = {"one": "ada/lab.ipynb", "two": "bob/lab.ipynb"}
    with reached(desk, "one", "two", notebooks=notebooks) as [one, two]:
        ada = one.session(notebooks["one"])
        assert [row.session.name for row in ada.run([PROMPT, PROMPT], max_new_tokens=0)] == ["lab/0", "lab/1"]
        bob = two.session(notebooks["two"])
        rows = bob.run([PROMPT], max_new_tokens=1)
        assert [row.session.name for row in rows] == ["bob/lab/0"]
        assert {one.name for one in two.sessions()} == {*notebooks.values(), "lab/0", "lab/1", "bob/lab/0"}
        assert [row.session.name for row in ada.run([PROMPT], max_new_tokens=0)] == ["ada/lab/0"]
        assert {one.name for one in two.sessions()} == {*notebooks.values(), "ada/lab/0", "bob/lab/0"}
        ada.close()
        assert [row.session.name for row in bob.run([PROMPT], max_new_tokens=0)] == ["lab/0"]
        assert {one.name for one in two.sessions()} == {notebooks["two"], "ada/lab/0", "lab/0"}
        assert rows[0].logits.shape  # type: ignore[union-attr]


def test_a_row_closed_in_mid_run_ends_alone(engine: RemoteEngine) -> None:
    session = engine.session("a")

    def close(token: Any) -> None:
        if token.session == "a/1" and token.step == 2:
            engine.reach("a/1").close(force=True)

    with pytest.raises(BatchEnded, match=r"1 of 3 rows failed, a/1 first: .*closed.*in `rows` of this error") as ended:
        session.run(PROMPT, samples=3, on_token=close, **DRAWN)
    rows = ended.value.rows
    assert isinstance(rows[1], IllegalMove)
    for number in (0, 2):
        assert alike(rows[number], engine.session("alone").run(PROMPT, seed=number, **DRAWN))


def test_a_prompt_that_cannot_run_leaves_the_others(engine: RemoteEngine) -> None:
    with pytest.raises(BatchEnded, match=r"1 of 3 rows failed, a/1 first: .*vocabulary") as ended:
        engine.session("a").run([PROMPT, [10**6], PROMPT[:2]], max_new_tokens=2)
    assert [isinstance(row, Finished) for row in ended.value.rows] == [True, False, True]


def test_what_no_row_can_do_is_the_error_itself(engine: RemoteEngine) -> None:
    session = engine.session("a")
    with pytest.raises(UsageError, match="vocabulary"):
        session.run([10**6], samples=3, temperature=1.0)
    with pytest.raises(IllegalMove, match="no forward pass is stopped"):
        session.resume(samples=2)
    with pytest.raises(UsageError, match="A batch has 1 to 4096 rows, not 0"):
        session.run(PROMPT, samples=0)
    with pytest.raises(UsageError, match="on_row"):
        session.run(PROMPT, on_row=lambda number, stop: None)
    with pytest.raises(UsageError, match="'last' or 'all', not 'some'"):
        session.run(PROMPT, logits="some")
    session.breakpoint(1, once=True)
    session.run(PROMPT)
    with pytest.raises(UsageError, match="all samples of it are equal; run the prompt with a temperature"):
        session.resume(samples=4)
    for given in ({"seed": 3}, {"on_row": lambda number, stop: None}):
        with pytest.raises(UsageError, match="belong to samples"):
            session.resume(**given)


@pytest.mark.parametrize("settings", [{"mode": "slow"}, {"max_new_tokens": -1}])
def test_what_no_row_can_be_asked_leaves_the_rows_before(engine: RemoteEngine, settings: dict[str, Any]) -> None:
    session = engine.session("a")
    rows = session.run(PROMPT, samples=2, **DRAWN)
    with pytest.raises(UsageError):
        session.run(PROMPT, samples=3, **settings)
    assert [row.session.logits().tolist() for row in rows] == [row.logits.tolist() for row in rows]  # type: ignore[union-attr]
    assert {one.name for one in engine.sessions()} == {"a", "a/0", "a/1"}


def test_no_memory_for_a_row_keeps_the_others() -> None:
    model = build("llama", layers=3)
    page = 3 * 2 * 2 * 16 * 8 * 4  # layers, key and value, heads, positions, features, bytes
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with one_thread():
        desk = build_desk(model, tokenizer(), device_memory=weights + 16 * page, host_memory=0, disk_memory=0)
        with reached(desk) as [engine]:
            with pytest.raises(BatchEnded, match=r"1 of 3 rows failed, a/1 first: .*more device memory") as ended:
                engine.session("a").run([PROMPT, [9] * 400, PROMPT], max_new_tokens=1, ignore_eos=True)
            assert [type(row) for row in ended.value.rows] == [Finished, SlabFull, Finished]


def test_an_interrupt_pauses_the_rows_that_run(engine: RemoteEngine) -> None:
    session = engine.session("a")

    def interrupt(token: Any) -> None:
        if token.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted, match="0 of 3 rows had finished") as broken:
        session.run(PROMPT, samples=3, on_token=interrupt, **DRAWN)
    rows = broken.value.rows
    assert all(isinstance(row, Paused) and row.reason == "interrupt" for row in rows)
    ends = [row.session.resume() for row in rows]  # type: ignore[union-attr]
    for number, end in enumerate(ends):
        assert alike(end, engine.session("alone").run(PROMPT, seed=number, **DRAWN))


def test_rows_are_told_as_they_end_and_tokens_as_they_come(engine: RemoteEngine) -> None:
    told: list[int] = []
    tokens: dict[str, list[int]] = {}
    rows = engine.session("a").run(
        [PROMPT, PROMPT[:2]],
        max_new_tokens=3,
        ignore_eos=True,
        on_row=lambda number, stop: told.append(number),
        on_token=lambda event: tokens.setdefault(event.session, []).append(event.token),
    )
    assert sorted(told) == [0, 1]
    assert {name: tuple(seen) for name, seen in tokens.items()} == {row.session.name: row.tokens for row in rows}


def test_a_fork_with_a_seed_needs_a_run(engine: RemoteEngine) -> None:
    session = engine.session("a")
    with pytest.raises(UsageError, match="run a prompt first"):
        session._channel.ask(ask.Fork(session="a", name="b", seed=1)).result()
    with pytest.raises(UnknownSession):
        engine.reach("b").describe()
