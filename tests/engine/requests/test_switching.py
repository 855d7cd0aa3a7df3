"""The tree of stops and forks; rules and edits that are turned off and on, after which values are as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from djinn_jupyter.errors import IllegalMove, InvalidEdit, UnknownRule
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom, Scale, Zero
from djinn_jupyter.wire.nouns import Origin
from tests.engine.desk import Desk, desk_of, tokens

PROMPT = tokens(6)


def branches(desk: Desk) -> dict[str, Any]:
    return {branch.session: branch for branch in desk.ask(ask.ReadTree()).branches}


def numbers(branch: Any) -> list[int]:
    return [stop.number for stop in branch.stops]


def test_a_session_without_stops_is_a_bare_branch(desk: Desk) -> None:
    (branch,) = branches(desk).values()
    assert (branch.session, branch.state, branch.stops, branch.present, branch.forked_from) == (
        "a",
        "idle",
        (),
        None,
        None,
    )


def test_stops_keep_their_numbers_however_a_session_goes_back_and_on(desk: Desk) -> None:
    for site in (2, 4, 6):
        desk.stop_at(site, "step == 0")
    desk.run(PROMPT)
    desk.resume()
    desk.resume()
    first, second, third = numbers(branches(desk)["a"])
    assert first < second < third
    desk.back(2)
    told = branches(desk)["a"]
    assert (numbers(told), told.present) == ([first, second, third], 0)
    desk.resume()
    again = numbers(branches(desk)["a"])
    assert again[0] == first
    assert again[1] > third, "going on from there made another stop"


def test_a_fork_shares_the_stops_up_to_where_it_began(desk: Desk) -> None:
    desk.stop_at(2, "step == 0")
    desk.stop_at(4, "step == 0")
    desk.run(PROMPT)
    desk.resume()
    desk.back()
    desk.fork("b")
    desk.resume()
    desk.resume("b")
    a, b = branches(desk)["a"], branches(desk)["b"]
    assert b.forked_from == Origin(session="a", stop=numbers(a)[0], tokens=len(PROMPT))
    assert numbers(a)[0] == numbers(b)[0]
    assert numbers(a)[1] != numbers(b)[1]
    desk.close("a")
    assert branches(desk)["b"].forked_from.session == "a", "closed, and remembered"


def test_the_present_stop_is_edited_while_an_edit_is_in_force(desk: Desk) -> None:
    desk.stop_at(2)
    desk.run(PROMPT)
    desk.edit()
    assert branches(desk)["a"].stops[0].edited
    desk.ask(ask.EnableEdit(session="a", number=1, enabled=False))
    assert not branches(desk)["a"].stops[0].edited


@pytest.fixture(params=["llama", "jamba"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def rule(desk: Desk, number: int, enabled: bool, name: str = "a") -> None:
    told = desk.ask(ask.EnableRule(session=name, number=number, enabled=enabled))
    assert told.rule.enabled is enabled


def edit(desk: Desk, number: int, enabled: bool) -> object:
    return desk.ask(ask.EnableEdit(session="a", number=number, enabled=enabled))


def test_a_rule_that_is_off_does_nothing_and_one_turned_on_again_what_it_did(desk: Desk) -> None:
    plain = desk.outcome(desk.run(PROMPT))
    number = desk.steer("resid_post.2", Scale(factor=3.0)).rule.number
    steered = desk.outcome(desk.run(PROMPT))
    rule(desk, number, False)
    assert desk.outcome(finished := desk.run(PROMPT)) == plain != steered
    assert (finished.rules[0].passes_met, finished.rules[0].enabled) == (0, False)
    rule(desk, number, True)
    assert desk.outcome(desk.run(PROMPT)) == steered


def test_a_rule_set_again_is_on_again(desk: Desk) -> None:
    number = desk.steer("resid_post.2", Scale(factor=3.0)).rule.number
    rule(desk, number, False)
    again = desk.steer("resid_post.2", Scale(factor=3.0))
    assert (again.existed, again.rule.number, again.rule.enabled) == (True, number, True)


def test_a_fork_has_the_rule_off_and_turns_it_on_for_itself_alone(desk: Desk) -> None:
    plain = desk.outcome(desk.run(PROMPT))
    number = desk.steer("resid_post.2", Scale(factor=3.0)).rule.number
    steered = desk.outcome(desk.run(PROMPT))
    rule(desk, number, False)
    desk.fork("b")
    assert desk.outcome(desk.run(PROMPT, name="b"), "b") == plain
    rule(desk, number, True, "b")
    assert desk.outcome(desk.run(PROMPT, name="b"), "b") == steered
    assert desk.outcome(desk.run(PROMPT)) == plain


def test_the_stop_tells_of_a_rule_that_is_off(desk: Desk) -> None:
    desk.steer("resid_post.2", Scale(factor=3.0))
    desk.steer("resid_post.6", Zero())
    rule(desk, 2, False)
    desk.stop_at("resid_post.4")
    applied, off = desk.run(PROMPT).influences.rules
    assert (applied.applies, applied.enabled, off.applies, off.enabled) == ("applied", True, "off", False)
    rule(desk, 1, False)
    (applied, _) = desk.ask(ask.ReadStop(session="a")).influences.rules
    assert (applied.applies, applied.enabled) == ("applied", False), "this pass has it, the next will not"


def test_edits_are_turned_off_and_on_one_by_one(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    arrived = desk.value()
    desk.edit(Scale(factor=3.0), positions=(-1,))
    both_apart = desk.value()
    desk.edit(Zero(), positions=(2,))
    both = desk.value()
    told = edit(desk, 2, False)
    assert torch.equal(desk.value(), both_apart)
    assert [(e.number, e.enabled) for e in told.influences.edits] == [(1, True), (2, False)]  # type: ignore[attr-defined]
    assert len(told.edits) == 1  # type: ignore[attr-defined]
    edit(desk, 1, False)
    assert torch.equal(desk.value(), arrived)
    edit(desk, 1, True)
    edit(desk, 2, True)
    assert torch.equal(desk.value(), both)
    assert not torch.equal(both, arrived)


def test_an_edit_turned_off_leaves_no_trace_in_what_comes_next(desk: Desk) -> None:
    desk.stop_at("resid_post.4", "step == 0")
    desk.run(PROMPT)
    plain = desk.outcome(desk.resume())
    desk.run(PROMPT)
    desk.edit(Scale(factor=3.0))
    edit(desk, 1, False)
    assert desk.outcome(desk.resume()) == plain


def test_a_patch_turned_on_again_puts_the_values_of_then(desk: Desk) -> None:
    desk.open("b")
    for name, prompt in (("a", PROMPT), ("b", tokens(6, seed=2))):
        desk.stop_at("resid_post.4", name=name)
        desk.run(prompt, name=name)
    desk.edit(PatchFrom(session="b"))
    patched = desk.value()
    edit(desk, 1, False)
    desk.close("b")
    told = edit(desk, 1, True)
    assert torch.equal(desk.value(), patched)
    assert told.edits == ("patch from b at resid_post.4, positions 0-5",)  # type: ignore[attr-defined]
    assert told.influences.edits[0].relative_size is not None  # type: ignore[attr-defined]


def test_turning_off_is_a_new_edition_of_the_same_stop(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    before = desk.edit().stop
    after = edit(desk, 1, False).stop  # type: ignore[attr-defined]
    assert (after.number, after.edition > before.edition) == (before.number, True)


def test_an_edit_is_switched_only_where_its_asker_sees_it(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    seen = desk.edit().stop
    desk.edit(Zero(), positions=(2,))
    value = desk.value()
    with pytest.raises(IllegalMove, match="was edited meanwhile"):
        desk.ask(ask.EnableEdit(session="a", number=1, enabled=False, stop=seen))
    assert torch.equal(desk.value(), value)


def test_what_is_not_there_is_refused_and_nothing_changes(desk: Desk) -> None:
    desk.stop_at("resid_post.4")
    desk.run(PROMPT)
    desk.edit()
    value = desk.value()
    with pytest.raises(InvalidEdit, match=r"no edit 2; there are 1: scale 0.5 at resid_post.4"):
        edit(desk, 2, False)
    with pytest.raises(UnknownRule, match="no steering rule 1"):
        rule(desk, 1, False)
    assert torch.equal(desk.value(), value)
