"""Rules that say where and when: positions to come, passes, conditions, every layer, rows of an array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.system.arrays import to_array
from djinn_jupyter.errors import InvalidCondition, InvalidEdit, UnknownSite
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Add, Edit, NormMatch, Scale, Set
from djinn_jupyter.wire.nouns import RuleDescription
from djinn_jupyter.wire.replies import RuleRefused
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.interventions.test_rules import V, family, rules, steered
from tests.engine.plain import generate, plain_of

PROMPT = tokens(12)
NEW = 5
ONES = torch.ones(12, 32)


@pytest.fixture(params=["llama", "gemma3_text", "jamba"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def steer(desk: Desk, site: str, edit: Edit, name: str = "a", **limits: Any) -> RuleDescription:
    return desk.ask(ask.Steer(session=name, site=site, edit=edit, **limits)).rule


def scaled_where(holds: Callable[[int, Tensor], bool]) -> Callable[[Tensor, int], Tensor]:
    """Scale the rows by two for whose position and value it holds."""

    def changed(hidden: Tensor, fed: int) -> Tensor:
        for row in range(hidden.shape[1]):
            if holds(fed + row, hidden[0, row]):
                hidden[0, row] = hidden[0, row] * 2.0
        return hidden

    return changed


def norm(row: Tensor) -> float:
    return float(row.to(torch.float32).norm())


LIMITS: list[tuple[dict[str, Any], Callable[[int, Tensor], bool]]] = [
    ({"onward": 9}, lambda position, row: position >= 9),
    ({"onward": 9, "positions": (0, 10)}, lambda position, row: position in (0, *range(9, 20))),
    ({"on": "prompt"}, lambda position, row: position < 12),
    ({"on": "new"}, lambda position, row: position >= 12),
    ({"on": "new", "positions": (13, 3)}, lambda position, row: position == 13),
    ({"when": "step in (1, 3)"}, lambda position, row: position in (12, 14)),
    (
        {"when": f"token_id == {PROMPT[4]} or position > 13"},
        lambda p, row: p > 13 or (*PROMPT, *[-1] * 9)[p] == PROMPT[4],
    ),
    ({"when": "position % 2 == 0", "onward": 5}, lambda position, row: position >= 5 and position % 2 == 0),
]


@pytest.mark.parametrize(("limits", "holds"), LIMITS, ids=[str(limits) for limits, _ in LIMITS])
def test_a_rule_with_limits_is_a_hook_with_an_if(
    desk: Desk, limits: dict[str, Any], holds: Callable[[int, Tensor], bool]
) -> None:
    steer(desk, "resid_post.4", Scale(factor=2.0), **limits)
    model = plain_of(family(desk))
    with steered(model, scaled_where(holds)):
        expected = generate(model, PROMPT, NEW)
    finished = desk.run(PROMPT, NEW)
    assert desk.outcome(finished) == expected
    assert not torch.equal(expected.logits, generate(model, PROMPT, NEW).logits)
    assert finished.rules[0].passes_met == NEW


def test_a_condition_is_asked_of_the_value_at_each_position(desk: Desk) -> None:
    desk.ask(ask.Watch(session="a", site="resid_post.4"))
    desk.run(PROMPT, 1)
    (seen,) = desk.ask(ask.ReadWatch(session="a", site="resid_post.4")).values
    middle = sorted(norm(row) for row in torch.frombuffer(seen.data, dtype=torch.float32).reshape(12, 32))[6]
    asked: list[bool] = []

    def holds(position: int, row: Tensor) -> bool:
        asked.append(norm(row) > middle)
        return asked[-1]

    steer(desk, "resid_post.4", Scale(factor=2.0), when=f"norm > {middle!r}")
    model = plain_of(family(desk))
    with steered(model, scaled_where(holds)):
        expected = generate(model, PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected
    assert {True, False} <= set(asked)


def test_a_rule_of_every_layer_is_one_rule_and_a_hook_on_each(desk: Desk) -> None:
    rule = steer(desk, "resid_post.*", Add(vector=array(V), coef=0.01))
    assert (rule.site, rule.what) == ("resid_post.*", "add [32] x 0.01 at resid_post.*")
    model = plain_of(family(desk))
    with ExitStack() as stack:
        for layer in range(desk.layers):
            stack.enter_context(steered(model, lambda h, fed: h + 0.01 * V, layer))
        expected = generate(model, PROMPT, NEW)
    finished = desk.run(PROMPT, NEW)
    assert desk.outcome(finished) == expected
    assert (finished.rules[0].passes_met, finished.rules[0].passes_changed) == (NEW, NEW)
    assert len(finished.rules[0].relative_sizes) == NEW * desk.layers
    desk.stop_at("resid_post.3")
    for _ in range(NEW):
        desk.run(PROMPT, NEW) if desk.session().state == "idle" else desk.resume()
    finished = desk.resume()
    assert desk.outcome(finished) == expected, "stops in its middle do not apply it twice"
    assert finished.rules[0].passes_met == NEW


def test_an_array_with_a_row_for_each_position_gives_each_its_own(desk: Desk) -> None:
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    steer(desk, "resid_post.4", Set(value=array(rows)), positions=(13, 2, 15))
    row_of = {13: rows[0], 2: rows[1], 15: rows[2]}

    def changed(hidden: Tensor, fed: int) -> Tensor:
        for row in range(hidden.shape[1]):
            hidden[0, row] = row_of.get(fed + row, hidden[0, row])
        return hidden

    model = plain_of(family(desk))
    with steered(model, changed):
        expected = generate(model, PROMPT, NEW)
    finished = desk.run(PROMPT, NEW)
    assert desk.outcome(finished) == expected
    assert (finished.rules[0].passes_changed, finished.rules[0].passes_refused) == (3, 0)


def test_a_rule_that_fits_the_prompt_alone_says_so_once_and_the_run_goes_on(desk: Desk) -> None:
    steer(desk, "resid_post.4", Set(value=array(ONES)))
    heard = len(desk.events)
    model = plain_of(family(desk))
    with steered(model, lambda h, fed: torch.ones_like(h) if fed == 0 else h):
        expected = generate(model, PROMPT, NEW)
    finished = desk.run(PROMPT, NEW)
    assert desk.outcome(finished) == expected
    (rule,) = finished.rules
    assert (rule.passes_met, rule.passes_changed, rule.passes_refused) == (NEW, 1, NEW - 1)
    assert rule.trouble == "The value has shape [12, 32], which does not broadcast to the selected part [1, 32]."
    assert [one.number for one in desk.events[heard:] if isinstance(one, RuleRefused)] == [rule.number]
    desk.stop_at("resid_post.6", "step == 1")
    (there,) = desk.run(PROMPT, NEW).influences.rules
    assert (there.applies, there.trouble) == ("refused", rule.trouble)


def test_a_condition_that_cannot_be_computed_refuses_the_pass_and_not_the_run(llama: Desk) -> None:
    llama.open()
    steer(llama, "resid_post.4", Scale(factor=2.0), when="1 / (position - 3) > 0")
    finished = llama.run(PROMPT, NEW)
    assert "division by zero" in (finished.rules[0].trouble or "")
    assert (finished.rules[0].passes_refused, finished.rules[0].passes_changed) == (1, NEW - 1)


@pytest.mark.parametrize(
    ("limits", "applies"),
    [
        ({"on": "new"}, "other passes"),
        ({"onward": 40}, "other positions"),
        ({"when": "norm > 1e30"}, "condition"),
        ({"when": "norm > 0"}, "applied"),
    ],
)
def test_a_stop_says_why_a_rule_is_not_in_it(llama: Desk, limits: dict[str, Any], applies: str) -> None:
    llama.open()
    steer(llama, "resid_post.4", Scale(factor=2.0), **limits)
    llama.stop_at("resid_post.6")
    (rule,) = llama.run(PROMPT, NEW).influences.rules
    assert rule.applies == applies


def test_going_back_by_tokens_and_a_fork_have_the_rule_with_all_its_limits(llama: Desk) -> None:
    llama.open()
    steer(llama, "resid_post.*", Scale(factor=1.1), onward=3, on="new", when="step > 1")
    expected = llama.outcome(llama.run(PROMPT, NEW))
    llama.fork("b")
    (mine,), (forked,) = rules(llama), rules(llama, "b")
    assert (mine.what, forked.what) == (
        2 * ("scale 1.1 at resid_post.*, from position 3 on, at new tokens, when step > 1",)
    )
    assert forked.passes_met == 0
    assert llama.outcome(llama.run(PROMPT, NEW, "b"), "b") == expected
    llama.back(2, by="token")
    assert llama.outcome(llama.resume()) == expected


@pytest.mark.parametrize("asked", ["step == 2", "step == 3 and position > 15"])
def test_rows_that_were_lost_are_made_again_under_the_same_conditions(llama: Desk, asked: str) -> None:
    """The pass log has no steps; a condition that asks for one is answered as in the run itself."""

    def outcome(*, lost: bool) -> Outcome:
        llama.open()
        steer(llama, "resid_post.4", Add(vector=array(10 * V)), when=asked)
        llama.run(PROMPT, NEW)
        llama.run(tokens(3, seed=7), NEW, extend=True)
        if lost:
            llama.session().lose_rows()
        return llama.outcome(llama.run(tokens(2, seed=8), NEW, extend=True))

    assert outcome(lost=True) == outcome(lost=False)


def test_the_same_limits_make_the_same_rule_and_others_another(llama: Desk) -> None:
    llama.open()
    first = steer(llama, "4", Scale(factor=2.0), when="step > 1")
    assert steer(llama, "4", Scale(factor=2.0), when="step > 1").number == first.number
    others = [{"when": "step > 2"}, {"on": "new"}, {"onward": 2}, {}]
    assert len({steer(llama, "4", Scale(factor=2.0), **limits).number for limits in others} | {first.number}) == 5


@pytest.mark.parametrize(
    ("site", "edit", "limits", "error", "said"),
    [
        ("resid_post.4", Scale(factor=2.0), {"when": "stepp > 1"}, InvalidCondition, "knows no 'stepp'.*logit, rank"),
        ("resid_post.4", Scale(factor=2.0), {"when": "norm"}, InvalidCondition, "has to be true or false"),
        ("z.4", Scale(factor=2.0), {"when": "p(' a') > 0.5"}, InvalidCondition, "another width"),
        ("resid_postt.*", Scale(factor=2.0), {}, UnknownSite, "is not a site"),
        ("z.*[9]", Scale(factor=2.0), {}, UnknownSite, "4 heads"),
        ("resid_mid.*", Add(vector=array(torch.ones(3))), {}, InvalidEdit, "the site has 32"),
        ("4", NormMatch(vector=array(torch.ones(3))), {}, InvalidEdit, "norm_match: the array's last axis has 3"),
        ("z.4", Set(value=array(torch.ones(3, 8))), {}, InvalidEdit, "the array has 3 heads, the site has 4"),
    ],
)
def test_what_can_be_known_is_refused_when_the_rule_is_set(
    llama: Desk, site: str, edit: Edit, limits: dict[str, Any], error: type[Exception], said: str
) -> None:
    llama.open()
    with pytest.raises(error, match=said):
        steer(llama, site, edit, **limits)
    assert rules(llama) == ()


def test_an_array_for_the_selected_features_is_as_wide_as_these(llama: Desk) -> None:
    llama.open()
    steer(llama, "resid_post.4[3:5]", Set(value=array(torch.tensor([1.0, 2.0]))))
    llama.stop_at("resid_post.4")
    llama.run(PROMPT, NEW)
    assert torch.equal(llama.value("resid_post.4")[:, 3:5], torch.tensor([[1.0, 2.0]]).expand(12, 2))


def test_z_and_the_pattern_of_another_session_are_frozen_here() -> None:
    """The sites then have the values of the rules, in a pass whose own values differ."""
    desk = desk_of("llama", attention="eager")
    desk.open()
    desk.open("b")
    desk.stop_at("resid_post.6", name="b")
    desk.run(tokens(12, seed=5), NEW, "b")
    for site in ("pattern.4[1]", "z.3"):
        value = desk.value(site, name="b")
        steer(desk, site, Set(value=to_array(value)), positions=tuple(range(12)), words="patch from b")
        desk.stop_at(site)
        stopped = desk.run(PROMPT, NEW)
        assert torch.equal(desk.value(site), value), site
        (rule,) = stopped.influences.rules
        assert rule.applies == "applied"
        assert (rule.relative_size or 0) > 0
        assert rule.what == f"patch from b at {site}, positions 0-11"
        desk.ask(ask.Unsteer(session="a"))
        desk.clear()
        desk.resume()
    desk.close_all()
