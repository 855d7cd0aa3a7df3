"""All that makes a stop other than the model alone would have it is told with the stop and with its effect."""

from __future__ import annotations

import pytest

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale, Zero
from djinn_jupyter.wire.readings import Influences
from tests.engine.desk import Desk, tokens

PROMPT = tokens(6)


@pytest.fixture
def desk(llama: Desk) -> Desk:
    llama.open()
    return llama


def test_a_stop_that_nothing_touched_has_no_influences(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    assert desk.run(PROMPT).influences == Influences()
    assert desk.logits_ahead().influences == Influences()


def test_a_rule_in_force_is_told_with_its_size_in_this_pass(desk: Desk) -> None:
    desk.steer("resid_post.2", Scale(factor=3.0))
    desk.stop_at("resid_post.4")
    stop = desk.run(PROMPT)
    (rule,) = stop.influences.rules
    assert (rule.number, rule.site, rule.what) == (1, "resid_post.2", "scale 3 at resid_post.2")
    assert rule.applies == "applied"
    assert rule.relative_size == pytest.approx(2.0)
    (override,) = stop.influences.overrides
    assert (override.site, [c.rule for c in override.changes]) == ("resid_post.2", [1])
    assert desk.logits_ahead().influences == stop.influences
    assert desk.ask(ask.ReadStop(session="a")) == stop


@pytest.mark.parametrize(
    ("site", "positions", "applies"),
    [
        ("resid_post.6", None, "ahead"),
        ("resid_post.2", (400,), "other positions"),
        ("resid_post.2", None, "next pass"),
        ("resid_post.4", None, "next pass"),
    ],
)
def test_a_rule_that_did_nothing_in_this_pass_says_why(
    desk: Desk, site: str, positions: tuple[int, ...] | None, applies: str
) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.steer(site, Scale(factor=3.0), positions=positions)
    (rule,) = desk.ask(ask.ReadStop(session="a")).influences.rules
    assert (rule.applies, rule.relative_size) == (applies, None)


def test_an_edit_made_at_an_earlier_stop_of_the_pass_is_told_at_the_next_one(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit(Scale(factor=0.5), positions=(-1,))
    stop = desk.step()
    assert stop.edits == ()
    (override,) = stop.influences.overrides
    assert override.site == "resid_post.4"
    assert [(c.what, c.rule) for c in override.changes] == [("scale 0.5 at resid_post.4, position 5", None)]
    assert override.changes[0].relative_size == pytest.approx(0.5)


def test_what_a_rule_made_stays_told_when_the_rule_has_ended(desk: Desk) -> None:
    desk.steer("resid_post.2", Scale(factor=3.0))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.ask(ask.Unsteer(session="a"))
    told = desk.ask(ask.ReadStop(session="a")).influences
    assert told.rules == ()
    assert [c.what for override in told.overrides for c in override.changes] == ["scale 3 at resid_post.2"]


def test_a_rule_and_an_edit_at_one_place_are_told_in_their_order(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=3.0))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit(Zero())
    (override,) = desk.step().influences.overrides
    assert [c.rule for c in override.changes] == [1, None]
    assert [c.relative_size for c in override.changes] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_passes_before_this_one_tell_what_was_done_in_them(desk: Desk) -> None:
    """Their keys and values stay: an edit of the prompt is felt at every later token."""
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit(Zero(), positions=(3,))
    desk.steer("resid_post.6", Scale(factor=3.0), positions=(6,))
    desk.resume()
    stop = desk.resume()
    earlier = [(one.start, one.end, one.changes) for one in stop.influences.earlier]
    assert earlier == [
        (0, 6, ("zero at resid_post.4, position 3",)),
        (6, 7, ("rule 1: scale 3 at resid_post.6, position 6",)),
    ]


def test_numbers_of_rules_are_their_own(desk: Desk) -> None:
    assert desk.stop_at("resid_post.4") == 1
    assert desk.steer("resid_post.2").rule.number == 1
    assert desk.stop_at("resid_post.5") == 2
    desk.ask(ask.Unsteer(session="a"))
    assert desk.steer("resid_post.2").rule.number == 2


def test_the_edit_of_a_head_names_head_and_position(desk: Desk) -> None:
    desk.stop_at("z.4")
    desk.run(PROMPT)
    desk.edit(Zero(), site="z.4[1]", positions=(-1,))
    assert desk.ask(ask.ReadStop(session="a")).edits == ("zero at z.4[1], position 5",)


def test_the_effect_reads_chosen_tokens_and_logits_on_both_sides(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit(Scale(factor=0.5))
    effect = desk.ask(ask.MeasureEffect(session="a", top=2, tokens=(7, 9))).effect
    assert [shift.token for shift in effect.chosen] == [7, 9]
    assert [shift.token for shift in effect.shifts[:2]] == [t.token for t in effect.after]
    assert {shift.token for shift in effect.shifts} == {t.token for t in (*effect.before, *effect.after)}
    by_token = {shift.token: shift for shift in effect.shifts}
    assert all(by_token[t.token].logit_before == t.logit for t in effect.before)
    assert all(by_token[t.token].probability_after == t.probability for t in effect.after)


def test_what_was_kept_tells_the_same(desk: Desk) -> None:
    desk.steer("resid_post.2", Scale(factor=3.0))
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit(Zero())
    before = desk.step().influences
    desk.ask(ask.SaveCheckpoint(session="a", name="told", replace=True))
    desk.ask(ask.RestoreCheckpoint(session="b", name="told"))
    assert desk.ask(ask.ReadStop(session="b")).influences == before
    assert desk.steer("resid_post.6", name="b").rule.number == 2
