"""Runs that share passes, in families of other kinds: lines past a sliding window, distances as biases, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.passes import columns
from djinn_jupyter.engine.passes.columns import ColumnLayer
from djinn_jupyter.engine.session import shared_prompts, sharing
from djinn_jupyter.engine.session import sharing as gathering
from djinn_jupyter.engine.session import sharing as trial
from djinn_jupyter.errors import OutOfDeviceMemory, SlabFull
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import ME, Desk, build_desk, desk_of, tokens
from tests.engine.variants import dynamic_rope, two_ropes
from tests.families import build

pytestmark = pytest.mark.drawn

LENGTHS, NEW = (3, 14, 8), 30


def run_at_once(desk: Desk, *, mode: Any, prompts: list[tuple[int, ...]], new: int = NEW) -> list[Any]:
    """Run these prompts greedily at once; the replies in their order."""
    replies: list[Any] = []
    for number in range(len(prompts)):
        desk.open(f"s{number}")
    for number, prompt in enumerate(prompts):
        run = ask.Run(session=f"s{number}", tokens=prompt, max_new_tokens=new, ignore_eos=True, mode=mode)
        desk.post(run, replies)
    while len(replies) < len(prompts):
        desk.engine.tick()
    return sorted(replies, key=lambda reply: reply.session)


@pytest.mark.parametrize("family", ["gemma3_text", "bloom", "gpt_oss"])
def test_lines_of_other_lengths_share_passes_and_stay_what_they_are_alone(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that no line has been given may hold anything."""
    given = columns._flat
    monkeypatch.setattr(columns, "_flat", lambda *of: tuple(rows.fill_(torch.nan) for rows in given(*of)))
    desk = desk_of(family)
    prompts = [tokens(length, seed=length) for length in LENGTHS]
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    logits = [desk.logits(row.session) for row in rows]
    assert [row.shared for row in rows] == [NEW] * len(rows)
    assert all(row.note is None for row in rows)
    for number, row in enumerate(rows):
        desk.open("alone")
        alone = desk.run(prompts[number], NEW, "alone")
        assert row.tokens == alone.tokens
        assert torch.allclose(logits[number], desk.logits("alone"), rtol=0, atol=1e-4)
    desk.close_all()


@pytest.mark.parametrize(("family", "why"), [("mamba", "recurrent states"), ("gemma3n_text", "several streams")])
def test_a_family_whose_lines_cannot_share_a_pass_runs_them_alone_and_says_so(family: str, why: str) -> None:
    desk = desk_of(family)
    prompts = [tokens(length, seed=length) for length in LENGTHS[:2]]
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    for number, row in enumerate(rows):
        assert (row.shared, why in row.note) == (0, True)
        desk.open("alone")
        assert desk.outcome(row, row.session) == desk.outcome(desk.run(prompts[number], NEW, "alone"), "alone")
    desk.close_all()


def test_a_prompt_is_computed_again_alone_and_tells_by_how_much_it_differed(llama: Desk) -> None:
    llama.engine.runtime.sharing.prompts._unchecked = shared_prompts.CHECKED_OF
    prompts = [tokens(length, seed=length) for length in (5, 9, 9, 12, 3)]
    rows = run_at_once(llama, mode="fast", prompts=prompts, new=1)
    differences = [row.largest_difference for row in rows if row.largest_difference is not None]
    assert len(differences) == 1
    assert differences[0] < 1e-4
    llama.close_all()


@pytest.mark.parametrize(
    ("lengths", "checked"), [([9, 9, 9, 9], [1, 0, 1, 0]), ([9, 7, 12, 12], [1, 0, 1, 0]), ([9, 10, 11, 12], [1] * 4)]
)
def test_prompts_are_checked_the_first_time_then_one_of_so_many_and_where_they_are_longer_than_before(
    lengths: list[int], checked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prompts, "CHECKED_OF", 4)
    desk = build_desk(build("llama", layers=2))
    found = []
    for length in lengths:
        rows = run_at_once(desk, mode="fast", prompts=[tokens(5), tokens(length)], new=1)
        assert [row.shared for row in rows] == [1, 1]
        found.append(sum(row.largest_difference is not None for row in rows))
        desk.close_all()
    assert found == checked


@pytest.mark.parametrize("part", ["prompt_logits", "next_logits"])
def test_a_family_that_shares_one_part_alone_shares_that(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = build_desk(build("llama", layers=2))

    def refused(*given: Any, **more: Any) -> Any:
        raise ValueError("one line only")
        yield

    prompts, new = [tokens(length, seed=length) for length in (5, 9, 12)], 4
    with monkeypatch.context() as patch:
        patch.setattr(trial, part, refused)
        rows = run_at_once(desk, mode="fast", prompts=prompts, new=new)
    said, passes = {
        "prompt_logits": ("Prompts were computed alone, for this family's lines cannot share them: ", new - 1),
        "next_logits": ("Passes over new tokens were computed alone, for this family's lines cannot share one: ", 1),
    }[part]
    assert [row.shared for row in rows] == [passes] * 3
    assert all(row.note == f"{said}its layers refuse several lines (one line only)." for row in rows)
    for number, row in enumerate(rows):
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], new, "alone").tokens
    desk.close_all()


def test_a_run_without_passes_over_new_tokens_says_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = build_desk(build("llama", layers=2))

    def refused(*given: Any, **more: Any) -> Any:
        raise ValueError("one line only")

    monkeypatch.setattr(trial, "next_logits", refused)
    prompts = [tokens(length, seed=length) for length in (5, 9, 12)]
    for new, said in ((0, False), (1, False), (2, True)):
        rows = run_at_once(desk, mode="fast", prompts=prompts, new=new)
        assert [row.shared for row in rows] == [1] * 3
        assert [row.note is not None for row in rows] == [said] * 3
        desk.close_all()


@pytest.mark.parametrize("fault", ["neighbour", "row"])
def test_shared_prompts_that_are_not_what_they_are_alone_are_thrown_away(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_prompts, "CHECKED_OF", 4)
    desk = build_desk(build("llama", layers=2))
    prompts = [tokens(length, seed=length) for length in (5, 9, 9, 12, 3)]
    run_at_once(desk, mode="fast", prompts=prompts)  # the trial has found nothing
    desk.close_all()
    planted = shared_prompts.prompt_logits

    def wrong(*given: Any, **more: Any) -> Any:
        logits_BV = yield from planted(*given, **more)
        return logits_BV.roll(1, 0) if fault == "neighbour" else logits_BV * 1.1

    monkeypatch.setattr(shared_prompts, "prompt_logits", wrong)
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    assert all("differed from the same computed alone" in row.note for row in rows)
    for number, row in enumerate(rows):
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], NEW, "alone").tokens
    desk.close_all()


def test_a_token_is_computed_again_alone_and_tells_by_how_much_it_differed(
    llama: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "CHECKED_OF", 8)
    monkeypatch.setattr(llama.engine.runtime.sharing, "_unchecked", 0)
    monkeypatch.setattr(llama.engine.runtime.sharing.prompts, "_longest_checked", 9)
    monkeypatch.setattr(llama.engine.runtime.sharing.prompts, "_unchecked", 0)
    rows = run_at_once(llama, mode="fast", prompts=[tokens(5), tokens(9)], new=8)  # a prompt, 7 next positions
    assert [(row.shared, row.largest_difference) for row in rows] == [(8, None)] * 2
    rows = run_at_once(llama, mode="fast", prompts=[tokens(5), tokens(9)], new=2)
    assert [row.shared for row in rows] == [2, 2]
    [difference] = [row.largest_difference for row in rows if row.largest_difference is not None]
    assert difference < 1e-4
    llama.settle()  # the rows computed alone are in the pages
    llama.close_all()


@pytest.mark.parametrize("tokens_before", [0, 12])
def test_a_row_that_reads_the_keys_of_another_is_found(tokens_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the trial, which would have found it; before the first token that is shared, or in mid-run."""
    monkeypatch.setattr(sharing, "CHECKED_OF", 8)
    desk = build_desk(build("llama", layers=2))
    prompts = [tokens(length, seed=length) for length in (5, 9, 12)]
    run_at_once(desk, mode="fast", prompts=prompts, new=1)
    desk.close_all()
    planted = ColumnLayer.update

    def others(self: ColumnLayer, *given: Any, **more: Any) -> Any:
        keys, values = planted(self, *given, **more)
        faulty = self.columns.end and self.columns.end >= max(map(len, prompts)) + tokens_before
        return (keys.roll(1, 0), values.roll(1, 0)) if faulty else (keys, values)

    monkeypatch.setattr(ColumnLayer, "update", others)
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    assert all("a token computed with others differed from the same computed alone" in row.note for row in rows)
    assert all(("before may be wrong" in row.note) for row in rows)
    shared = [row.shared for row in rows]
    assert max(shared) <= 1 + tokens_before + 8  # the prompt, the tokens before, those until the next check
    if not tokens_before:
        for number, row in enumerate(rows):
            desk.open("alone")
            assert row.tokens == desk.run(prompts[number], NEW, "alone").tokens
    assert all(row.shared == 0 for row in run_at_once(desk, mode="fast", prompts=prompts))
    desk.close_all()


def test_without_memory_for_the_check_the_passes_are_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_prompts, "CHECKED_OF", 4)
    desk = build_desk(build("llama", layers=2))
    prompts = [tokens(length, seed=length) for length in (5, 9, 9, 12, 3)]
    run_at_once(desk, mode="fast", prompts=prompts, new=1)  # the trial, and a check for which there is memory
    desk.close_all()
    short = []

    def none_left(*given: Any) -> Any:
        short.append(1)
        raise OutOfDeviceMemory("no memory")
        yield

    for where in (shared_prompts, sharing):
        monkeypatch.setattr(where, "rechecked", none_left)
    rows = run_at_once(desk, mode="fast", prompts=prompts, new=4)
    assert len(short) == 2  # once for a prompt, once for a token
    assert [row.shared for row in rows] == [2] * len(rows)
    for number, row in enumerate(rows):
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], 4, "alone").tokens
    desk.close_all()


def test_a_lone_prompt_does_not_wait_for_others_while_rounds_are_long(
    llama: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(gathering, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    llama.open("a")
    replies: list[Any] = []
    llama.post(ask.Run(session="a", tokens=tokens(5), max_new_tokens=1, ignore_eos=True, mode="fast"), replies)
    ticks = 0
    while not llama.session("a").cache.length:
        llama.engine.tick()
        ticks += 1
    assert ticks < 8


def test_a_rule_that_is_set_while_prompts_are_computed_holds_from_the_prompt_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request comes while the first layer runs, as another thread's; the pass gives way to it."""
    desk = build_desk(build("llama", layers=8))
    prompts = [tokens(length, seed=length) for length in (9, 9, 9)]
    planted, replies = shared_prompts.prompt_logits, list[Any]()

    def steered(*given: Any, **more: Any) -> Any:
        step = planted(*given, **more)
        next(step)
        desk.post(ask.Steer(session="s1", site="resid_post.2", edit=Scale(factor=0.5)), [])
        yield
        return (yield from step)

    monkeypatch.setattr(shared_prompts, "prompt_logits", steered)
    for number in range(len(prompts)):
        desk.open(f"s{number}")
    for number, prompt in enumerate(prompts):
        run = ask.Run(session=f"s{number}", tokens=prompt, max_new_tokens=4, ignore_eos=True, mode="fast")
        desk.post(run, replies)
    while len(replies) < len(prompts):
        desk.engine.tick()
    assert [row.shared > 0 for row in sorted(replies, key=lambda row: row.session)] == [True, False, True]
    desk.open("alone")
    desk.steer("resid_post.2", Scale(factor=0.5), "alone")
    desk.run(prompts[1], 4, "alone")
    assert torch.equal(desk.logits("s1"), desk.logits("alone"))
    desk.close_all()


@pytest.mark.parametrize("ticks", range(0, 12, 3))
def test_a_breakpoint_set_while_runs_share_passes_holds_in_the_pass_under_way(llama: Desk, ticks: int) -> None:
    """At any moment: before the run takes a seat, while it waits for others, and between two layers of their pass. A
    pass that another run has led to its end already is past, though its token is not drawn yet."""
    for name in "ab":
        llama.open(name)
        llama.post(ask.Run(session=name, tokens=tokens(4), max_new_tokens=NEW, ignore_eos=True, mode="fast"), [])
    while len(llama.session("b").tokens) < 6:
        llama.engine.tick()
    for _ in range(ticks):
        llama.engine.tick()
    steps: list[int] = []
    set_it = ask.SetBreakpoint(session="a", site="resid_post.7")

    def note(reply: Any) -> None:
        seats = [one for one in llama.engine.runtime.sharing._members if one.session is llama.session("a")]
        steps.append(len(llama.session("a").tokens) - 4 + sum(one.outcome is not None for one in seats))

    llama.engine.submit(set_it, ME, note)
    while llama.session("a").state == "running":
        llama.engine.tick()
    session = llama.session("a")
    assert (session.state, [len(session.tokens) - 4]) == ("paused", steps)
    assert 0 < steps[0] < NEW


def test_the_trial_gives_way_to_mail_and_its_pages_are_accounted_for() -> None:
    model = build("llama", layers=2)
    desk = build_desk(model)
    shared, slices, replies = desk.engine.runtime.sharing, 0, list[Any]()
    for name in "ab":
        desk.open(name)
    for layer in model.model.layers:  # a request comes while each of them runs
        layer.register_forward_hook(lambda *given: desk.post(ask.Describe(session="a"), []))
    for name in "ab":
        desk.post(ask.Run(session=name, tokens=tokens(5), max_new_tokens=4, ignore_eos=True, mode="fast"), replies)
    while len(replies) < 2:
        desk.engine.tick()
        if shared.caches:
            slices += 1
            desk.engine.check_invariants(contents=True)
    assert slices > desk.layers
    assert [row.shared for row in replies] == [4, 4]
    desk.close_all()


def test_a_trial_whose_run_is_closed_frees_its_pages_and_is_made_for_the_next() -> None:
    desk = build_desk(build("llama", layers=2))
    shared = desk.engine.runtime.sharing
    for name in "ab":
        desk.open(name)
        desk.post(ask.Run(session=name, tokens=tokens(5), max_new_tokens=4, ignore_eos=True, mode="fast"), [])
    while not shared.caches:
        desk.engine.tick()
    desk.close_all()
    assert shared.caches == ()
    assert [row.shared for row in run_at_once(desk, mode="fast", prompts=[tokens(5), tokens(9)], new=4)] == [4, 4]
    desk.close_all()


@pytest.mark.parametrize("short", [SlabFull("no memory"), torch.OutOfMemoryError("no memory")], ids=["pages", "device"])
def test_a_trial_without_memory_lets_more_and_more_rounds_go_by(
    llama: Desk, monkeypatch: pytest.MonkeyPatch, short: Exception
) -> None:
    def no_memory(*_: Any) -> None:
        tried.append(1)
        raise short

    tried: list[int] = []
    for name, value in (("_tested", False), ("_untried", 0), ("_skipped", 0)):
        monkeypatch.setattr(llama.engine.runtime.sharing, name, value)
    monkeypatch.setattr(sharing.Trial, "why_not", no_memory)
    rows = run_at_once(llama, mode="fast", prompts=[tokens(5), tokens(6)])
    assert [row.shared for row in rows] == [0, 0]
    assert 1 <= len(tried) <= 5  # of 30 rounds


@pytest.mark.parametrize(
    ("made", "lengths", "shared"),
    [
        (two_ropes, (24, 21, 9, 22), [4, 4, 0, 4]),  # beyond 20 positions, and short of that
        (dynamic_rope, (24, 21, 9, 5), [0, 0, 4, 4]),  # beyond 16 each length has its own frequencies
    ],
)
def test_lines_share_passes_where_their_lengths_have_the_same_rotary_frequencies(
    made: Any, lengths: tuple[int, ...], shared: list[int]
) -> None:
    desk = build_desk(made())
    prompts = [tokens(length, seed=length) for length in lengths]
    rows = run_at_once(desk, mode="fast", prompts=prompts, new=4)
    logits = [desk.logits(row.session) for row in rows]
    assert [(row.shared, row.note) for row in rows] == [(passes, None) for passes in shared]
    for prompt, row, last in zip(prompts, rows, logits, strict=True):
        desk.open("alone")
        alone = desk.outcome(desk.run(prompt, 4, "alone"), "alone")
        assert row.tokens == alone.tokens
        assert torch.allclose(last, alone.logits, rtol=0, atol=1e-4)
    desk.close_all()


def test_a_family_is_tried_by_the_first_that_share_a_pass_and_by_none_after() -> None:
    model, calls = build("llama"), list[int]()
    for layer in model.model.layers:
        layer.register_forward_hook(lambda *given: calls.append(1))
    desk = build_desk(model)
    passes = []
    for _ in range(3):
        before, desk.engine.runtime.sharing._unchecked = len(calls), 0
        desk.engine.runtime.sharing.prompts._unchecked = -100
        run_at_once(desk, mode="fast", prompts=[tokens(5), tokens(9)], new=2)
        passes.append((len(calls) - before) / len(model.model.layers))
        desk.close_all()
    assert passes[1] == passes[2], passes
    assert 20 < passes[0] - passes[1] < 100  # a load proves the model in 75
