"""Batches: rows in sessions of their own, each the run that it would be alone; samples, doses of a rule, and what is
read of them late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.batches import doses_of, responses
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import BatchInterrupted, Finished, Paused
from djinn_jupyter.errors import (
    BatchEnded,
    IllegalMove,
    InvalidCondition,
    SessionsWouldSuffer,
    SlabFull,
    UnknownSession,
    UsageError,
)
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


def close(row: object, alone: object) -> bool:
    """True where both drew the same tokens from logits that differ by rounding at most."""
    assert isinstance(row, Finished)
    assert isinstance(alone, Finished)
    return row.tokens == alone.tokens and np.allclose(row.logits, alone.logits, rtol=0, atol=1e-5)


LIKE: dict[str, Callable[[object, object], bool]] = {"exact": alike, "fast": close}


def test_sample_i_is_what_seed_plus_i_alone_samples(engine: RemoteEngine, desk: Desk) -> None:
    session, before = engine.session("a"), desk.engine.counters.passes
    rows = session.run(PROMPT, samples=4, seed=5, **DRAWN)
    assert desk.engine.counters.passes - before == 1 + 4 * (DRAWN["max_new_tokens"] - 1)  # their prompt once
    assert [row.session.name for row in rows] == ["a/0", "a/1", "a/2", "a/3"]
    for number, row in enumerate(rows):
        alone = engine.session("alone").run(PROMPT, seed=5 + number, **DRAWN)
        assert alike(row, alone)
        assert (row.passes, row.layers_run) == (alone.passes, alone.layers_run)
    assert len({row.tokens for row in rows}) > 1


def test_prompts_of_all_lengths_are_run_each_as_alone(engine: RemoteEngine) -> None:
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, 31, 33, 35]]
    rows = engine.session("a").run(prompts, max_new_tokens=3, ignore_eos=True)
    assert [row.prompt_tokens for row in rows] == [tuple(prompt) for prompt in prompts]
    for prompt, row in zip(prompts, rows, strict=True):
        assert alike(row, engine.session("alone").run(prompt, max_new_tokens=3, ignore_eos=True))


def test_texts_are_prompts_and_samples_of_each_follow_one_another(engine: RemoteEngine) -> None:
    rows = engine.session("a").run(["w9 w8", "w21"], samples=2, seed=3, **DRAWN)
    texts = [row.prompt_text for row in rows]
    assert texts == [rows[0].prompt_text] * 2 + [rows[2].prompt_text] * 2
    assert alike(rows[3], engine.session("alone").run("w21", seed=6, **DRAWN))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_stop_in_one_row_halts_no_other_and_it_goes_on_as_alone(engine: RemoteEngine, mode: Any) -> None:
    free = engine.session("a").run(PROMPT, samples=3, **DRAWN)
    last = free[1].tokens[2]
    others = [row for row in free if row.tokens[2] != last]
    session = engine.session("b")
    session.breakpoint("resid_post.1", when=f"step == 3 and token_id == {last}")
    rows = session.run(PROMPT, samples=3, mode=mode, **DRAWN)
    assert isinstance(rows[1], Paused)
    assert (rows[1].site, rows[1].step) == ("resid_post.1", 3)
    assert others
    assert [LIKE[mode](row, was) for row, was in zip(rows, free, strict=True) if was in others] == [True] * len(others)
    kept = rows[1].session.fork("kept")
    kept.edit(dj.scale(0.0))
    assert LIKE[mode](rows[1].session.resume(), free[1])


def test_a_stop_in_the_prompt_is_met_by_every_row(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.breakpoint("resid_post.1", when="step == 0")
    rows = session.run(PROMPT, samples=3, seed=1, **DRAWN)
    assert [(row.site, row.step) for row in rows] == [("resid_post.1", 0)] * 3
    rows[2].session.edit(dj.scale(0.5))
    ends = [row.session.resume() for row in rows]
    assert alike(ends[1], engine.session("alone").run(PROMPT, seed=2, **DRAWN))
    assert not np.array_equal(ends[2].logits, ends[1].logits)


def test_a_stop_is_gone_on_from_many_times_and_stays(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.breakpoint("resid_post.1", when="step == 0")
    stop = session.run(PROMPT, **DRAWN)
    rows = session.resume(samples=3, seed=4)
    for number, row in enumerate(rows):
        assert alike(row, engine.session("alone").run(PROMPT, seed=4 + number, **DRAWN))
    assert session.stop.reply == stop.reply
    back = rows[2].session.back()
    assert back.step == 0
    assert rows[2].session.resume().tokens == rows[2].tokens


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
    assert session.resume().tokens == alone.resume().tokens == done.tokens


def test_the_rows_of_an_earlier_batch_end_and_what_was_read_of_them_stays(engine: RemoteEngine) -> None:
    session = engine.session("a")
    first = session.run(PROMPT, samples=3, **DRAWN)
    logits = [row.session.logits() for row in first]
    session.run(PROMPT, samples=2, seed=9, **DRAWN)
    assert {one.name for one in engine.sessions()} == {"a", "a/0", "a/1"}
    assert all(np.array_equal(row.logits, was) for row, was in zip(first, logits, strict=True))


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
    assert all(len(row.logits) for row in kept)


def logits_read(session: Any) -> list[str]:
    return [one.session for one in session.channel.requests if isinstance(one, ask.ReadLogits)]


def test_a_row_of_another_kernel_is_not_replaced(desk: Desk) -> None:
    with reached(desk, "one", "two") as [one, two]:
        session = one.session("a")
        session.run([PROMPT] * 3, max_new_tokens=0)
        session.sibling("a/0").close()
        two.session("a/0")
        with pytest.raises(SessionsWouldSuffer):
            session.run(PROMPT, samples=2, **DRAWN)
        assert {session.name for session in one.sessions()} == {"a", "a/0", "a/1", "a/2"}, "none of ours has ended"
        with pytest.raises(
            SessionsWouldSuffer, match=r"to close it all the same, add --force \(in Python force=True\)"
        ):
            one.session("a").run([PROMPT], max_new_tokens=0)
        assert alike(
            one.session("a").run([PROMPT], max_new_tokens=0, force=True)[0],
            one.session("b").run(PROMPT, max_new_tokens=0),
        )


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
        assert rows[0].logits.shape


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_row_closed_in_mid_run_ends_alone(engine: RemoteEngine, mode: Any) -> None:
    def close_one(token: Any) -> None:
        if token.session in ("a/0", "a/2") and token.step == 2:
            engine.reach(token.session).close(force=True)

    said = r"2 of 4 rows failed, a/0 first: .*closed.*in `rows` of this error"
    with pytest.raises(BatchEnded, match=said) as ended:
        engine.session("a").run(PROMPT, samples=4, mode=mode, on_token=close_one, **DRAWN)
    rows = ended.value.rows
    assert isinstance(rows[0], IllegalMove)
    for number in (1, 3):
        assert LIKE[mode](rows[number], engine.session("alone").run(PROMPT, seed=number, **DRAWN))


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
    with pytest.raises(
        UsageError, match="most probable token each time, and seed would change nothing: give a temperature"
    ):
        session.resume(samples=4)
    with pytest.raises(UsageError, match="belong to samples"):
        session.resume(on_row=lambda number, stop: None)


def test_no_memory_for_a_row_keeps_the_others(engine: RemoteEngine) -> None:
    with pytest.raises(BatchEnded, match=r"1 of 3 rows failed, a/1 first: .*vocabulary") as ended:
        engine.session("a").run([PROMPT, [10**6], PROMPT[:2]], max_new_tokens=2)
    assert [isinstance(row, Finished) for row in ended.value.rows] == [True, False, True]
    model = build("llama", layers=3)
    page = 3 * 2 * 2 * 16 * 8 * 4  # layers, key and value, heads, positions, features, bytes
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    with one_thread():
        desk = build_desk(model, tokenizer(), device_memory=weights + 16 * page, host_memory=0, disk_memory=0)
        with reached(desk) as [small]:
            with pytest.raises(BatchEnded, match=r"1 of 3 rows failed, a/1 first: .*more device memory") as ended:
                small.session("a").run([PROMPT, [9] * 400, PROMPT], max_new_tokens=1, ignore_eos=True)
            assert [type(row) for row in ended.value.rows] == [Finished, SlabFull, Finished]


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_an_interrupt_pauses_the_rows_that_run(engine: RemoteEngine, mode: Any) -> None:
    def interrupt(token: Any) -> None:
        if token.step == 3 and (mode == "exact" or token.session == "a/1"):
            raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted, match="0 of 3 rows had finished") as broken:
        engine.session("a").run(PROMPT, samples=3, mode=mode, on_token=interrupt, **DRAWN)
    rows = broken.value.rows
    assert all(isinstance(row, Paused) and row.reason == "interrupt" for row in rows)
    for number, end in enumerate([row.session.resume() for row in rows]):
        assert LIKE[mode](end, engine.session("alone").run(PROMPT, seed=number, **DRAWN))


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
    with pytest.raises(IllegalMove, match="no forward pass is stopped"):
        session.fork("b", seed=1)
    with pytest.raises(UnknownSession):
        engine.reach("b").describe()


COEFS = [0.0, 0.5, 3.0]
VECTOR = np.linspace(-1, 1, 32, dtype=np.float32)


@pytest.mark.parametrize(
    "edit", [dj.scale, lambda coef: dj.add(VECTOR, coef), lambda coef: dj.norm_match(VECTOR, coef)]
)
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_each_coefficient_is_a_row_and_bit_for_bit_its_rule_alone(engine: RemoteEngine, edit: Any, mode: Any) -> None:
    session = engine.session("a")
    session.steer(1, edit(7.0))
    rows = session.run(PROMPT, coefs=COEFS, max_new_tokens=4, ignore_eos=True, mode=mode)
    assert [row.session.name for row in rows] == ["a/0", "a/1", "a/2"]
    for row, coef in zip(rows, COEFS, strict=True):
        alone = engine.session("alone", fresh=True)
        alone.steer(1, edit(coef))
        assert alike(row, alone.run(PROMPT, max_new_tokens=4, ignore_eos=True))
    assert len({row.logits.tobytes() for row in rows}) == 3
    assert session.rules()[0].edit == edit(7.0)


def test_samples_of_a_coefficient_share_its_prompt_under_its_rule(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0), -1)
    session.steer(0, dj.zero(), 0)
    rows = session.run(PROMPT, coefs=[0.0, 2.0], rule=1, samples=2, seed=3, **DRAWN)
    assert doses_of(rows, [0.0, 2.0], 2) == [0.0, 0.0, 2.0, 2.0]
    alone = engine.session("alone")
    alone.steer(1, dj.scale(2.0), -1)
    alone.steer(0, dj.zero(), 0)
    assert alike(rows[3], alone.run(PROMPT, seed=6, **DRAWN))


def test_a_rule_that_is_off_is_on_in_the_rows(engine: RemoteEngine) -> None:
    session = engine.session("a")
    rule = session.steer(1, dj.scale(1.0))
    rule.off()
    [row] = session.run(PROMPT, coefs=[0.0], max_new_tokens=0)
    assert (row.session.rules()[0].enabled, session.rules()[0].enabled) == (True, False)
    assert row.rules[0].passes_changed == 1


def test_the_response_is_the_metric_of_the_rows_that_finished(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0), -1)
    rows = session.run(PROMPT, coefs=[3.0, 0.0], max_new_tokens=0)
    found = responses(rows, [3.0, 0.0], ["logit(7) - logit(8)", "rank(7)"])
    assert list(found) == [0.0, 3.0]
    logits = rows[0].logits
    assert found[3.0] == (float(logits[7]) - float(logits[8]), float((logits > logits[7]).sum()) + 1)
    session.breakpoint("resid_post.2")
    stopped = session.run(PROMPT, coefs=[0.0], max_new_tokens=0)
    assert isinstance(stopped[0], Paused)
    assert responses(stopped, [0.0], ["logit(7)"]) == {}
    with pytest.raises(UsageError, match="finished no pass yet"):
        stopped[0].session.metrics("logit(7)")
    for texts, said in (((), "none was given"), ((3,), "3 is none"), (("rank(1)", None), "None")):
        with pytest.raises(UsageError, match=f"^A metric is a text such as .*; {said}"):
            session.metrics(*texts)
    with pytest.raises(InvalidCondition, match="metric"):
        session.metrics("logits(7)")
    with pytest.raises(InvalidCondition, match="name exactly one"):  # so that a batch asks before it runs
        session.metrics("logit(' no one token')")


@pytest.mark.parametrize(
    ("rules", "given", "said"),
    [
        ([], {"coefs": [1.0]}, "a steering rule its coefficients, and there is none here"),
        ([dj.scale(1.0), dj.scale(2.0)], {"coefs": [1.0]}, "name one of 1, 2 "),
        (
            [dj.scale(1.0)],
            {"coefs": [1.0], "rule": 4},
            "There is no steering rule 4 to give coefficients to; there are: 1",
        ),
        ([dj.zero()], {"coefs": [1.0]}, "needs an edit with a coefficient: .*; zero has none"),
        ([dj.scale(1.0)], {"coefs": [0.0, float("nan")]}, "finite in float32, and nan is none"),
        ([dj.scale(1.0)], {"coefs": [1e39]}, "finite in float32"),
        ([dj.scale(1.0)], {"coefs": []}, "A batch has 1 to 4096 rows, not 0"),
        ([dj.scale(1.0)], {"rule": 1}, "give these too"),
        ([], {"samples": 3, "mode": "slow"}, "slow"),
        ([], {"samples": 3, "temperature": 1.0, "max_new_tokens": -1}, "max_new_tokens"),
        ([dj.scale(1.0)], {"prompt": None, "coefs": [1.0], "extend": True}, "nothing to extend; run a prompt first"),
        ([dj.scale(1.0)], {"prompt": None, "coefs": [1.0]}, "The prompt has no tokens"),
    ],
)
def test_what_no_row_could_have_is_one_sentence_and_leaves_the_rows_before(
    engine: RemoteEngine, rules: list[Any], given: dict[str, Any], said: str
) -> None:
    session = engine.session("a")
    before = session.run([PROMPT, PROMPT[:2]], max_new_tokens=0)
    for rule in rules:
        session.steer(1, rule)
    with pytest.raises(UsageError, match=said):
        session.run(**{"prompt": PROMPT, "max_new_tokens": 0, **given})
    assert all(np.array_equal(row.session.logits(), row.logits) for row in before)


def test_rows_have_the_logits_of_all_positions_where_they_are_asked_for(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0))
    rows = session.run([PROMPT, PROMPT[:2]], coefs=[0.5], max_new_tokens=0, logits="all")
    alone = engine.session("alone")
    alone.steer(1, dj.scale(0.5))
    for row, prompt in zip(rows, (PROMPT, PROMPT[:2]), strict=True):
        assert isinstance(row, Finished)
        row.session.unsteer()
        expected = alone.run(prompt, max_new_tokens=0, logits="all").logits
        assert row.logits.shape[0] == len(prompt)
        assert np.array_equal(row.logits, expected)


NEW = DRAWN["max_new_tokens"]


def test_samples_share_all_their_passes_and_are_what_each_alone_samples(engine: RemoteEngine) -> None:
    rows = engine.session("a").run(PROMPT, samples=4, seed=5, mode="fast", **DRAWN)
    for number, row in enumerate(rows):
        assert close(row, engine.session("alone").run(PROMPT, seed=5 + number, **DRAWN))
    assert [row.shared for row in rows] == [NEW - 1] * 4
    assert {one.name: one.exactness for one in engine.sessions()} == {
        "a": "exact",
        "alone": "exact",
        **{f"a/{i}": "fast" for i in range(4)},
    }


def test_the_rows_of_a_shared_pass_are_in_the_pages_and_all_is_given_back(engine: RemoteEngine, desk: Desk) -> None:
    rows = engine.session("a").run(PROMPT, samples=3, mode="fast", **DRAWN)
    desk.engine.check_invariants(contents=True)
    assert desk.engine.budget.held()["shared passes"] == 0
    more: Any = {"extend": True, "max_new_tokens": 3, "ignore_eos": True}
    for number, row in enumerate(rows):
        alone = engine.session("alone")
        alone.run(PROMPT, seed=number, **DRAWN)
        assert close(row.session.run(**more), alone.run(**more))


def test_a_rule_in_one_row_is_applied_there_alone(engine: RemoteEngine, desk: Desk) -> None:
    rows = engine.session("a").run(PROMPT, samples=3, **{**DRAWN, "max_new_tokens": 1})
    rows[1].session.steer(1, dj.scale(0.2))
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


def test_logits_are_those_of_their_own_run_or_are_refused(engine: RemoteEngine) -> None:
    first, second = [engine.session("again", fresh=True).run([5, 6 + i], max_new_tokens=1) for i in range(2)]
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    with pytest.raises(IllegalMove, match="'again' has moved on: the logits of this run were not fetched"):
        first.fetch_logits()
    assert int(second.logits.argmax()) == second.top[0].token
    earlier = engine.session("rows").run([5, 6], samples=2, temperature=1.0, max_new_tokens=1)
    engine.session("rows").run([5, 7], samples=2, temperature=1.0, max_new_tokens=1)
    with pytest.raises(IllegalMove, match="has moved on"):
        earlier[1].logits  # noqa: B018


@pytest.mark.parametrize("read", [lambda stop: stop.hidden, lambda stop: stop.lens(1), lambda stop: stop.effect(1)])
def test_values_of_a_stop_are_its_own_or_are_refused(engine: RemoteEngine, read: Callable[[Paused], object]) -> None:
    one, other = engine.session("stopped", fresh=True), engine.session("stopped")
    one.breakpoint("resid_post.1")
    stop = one.run([5, 6], max_new_tokens=1)
    assert isinstance(stop, Paused)
    read(stop)
    other.run([5, 7], max_new_tokens=1)
    with pytest.raises(IllegalMove, match=r"'stopped' has moved on from resid_post\.1 \(step 0\)"):
        read(one_at(stop))


def one_at(stop: Paused) -> Paused:
    """Return the same stop with nothing fetched yet."""
    return Paused(stop.session, stop.reply, stop.session.moves)
