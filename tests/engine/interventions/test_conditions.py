"""Conditions of breakpoints and rules, and what they read of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.passes.conditions import READINGS, of_token, parse
from djinn_jupyter.errors import InvalidCondition
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Zero
from djinn_jupyter.wire.replies import Paused
from tests.engine.desk import Desk, tokens
from tests.engine.plain import generate, plain_of

PROMPT = tokens(9)
NEW = 5
LAYER = 3


def read(token: int) -> str:
    return " a" if token == 1 else f" w{token}"


@dataclass(frozen=True, slots=True)
class SiteValue:
    """One position of a pass, as the plain model has it at the output of layer 3."""

    step: int
    position: int
    token_id: int
    norm: float
    distribution: torch.Tensor

    @property
    def token(self) -> str:
        return read(self.token_id)

    @property
    def top1(self) -> str:
        return read(int(self.distribution.argmax()))

    def p(self, text: str) -> float:
        return float(self.distribution[int(text.removeprefix(" w"))])


@pytest.fixture(scope="module")
def moments() -> list[SiteValue]:
    """Every position of the prompt and of the generated tokens that are fed."""
    model = plain_of("llama")
    line = PROMPT + generate(model, PROMPT, NEW).tokens[:-1]
    found = []
    with torch.no_grad():
        hidden = model(torch.tensor([line], device=model.device), output_hidden_states=True).hidden_states[LAYER + 1][0]
        distributions = torch.softmax(model.lm_head(model.model.norm(hidden)), dim=-1)
    for position, token in enumerate(line):
        step = max(0, position + 1 - len(PROMPT))
        found.append(SiteValue(step, position, token, float(hidden[position].norm()), distributions[position]))
    return found


@pytest.fixture
def desk(worded: Desk) -> Iterator[Desk]:
    worded.open()
    yield worded
    worded.close_all()


def stops(desk: Desk, free: bool = False) -> list[Paused]:
    """Run from stop to stop to the end."""
    found = []
    reply: Any = desk.run(PROMPT, NEW, free=free)
    while isinstance(reply, Paused):
        found.append(reply)
        reply = desk.resume()
    return found


T = PROMPT[4]
CASES: list[tuple[str, Callable[[SiteValue], Any]]] = [
    ("step == 2", lambda m: m.step == 2),
    ("step % 2 == 1", lambda m: m.step % 2 == 1),
    ("step in (0, 3)", lambda m: m.step in (0, 3)),
    ("position == 4", lambda m: m.position == 4),
    ("position >= 9 and not step == 2", lambda m: m.position >= 9 and m.step != 2),
    ("2 < position < 5 or position == 11", lambda m: 2 < m.position < 5 or m.position == 11),
    (f"token == ' w{T}'", lambda m: m.token == f" w{T}"),
    (f"token_id == {T}", lambda m: m.token_id == T),
    ("len(token) == 3", lambda m: len(m.token) == 3),
    ("'7' in token", lambda m: "7" in m.token),
    ("norm > 9.0", lambda m: m.norm > 9.0),
    ("norm < 7.5 and step > 0", lambda m: m.norm < 7.5 and m.step > 0),
    ("max(norm, 8) == 8", lambda m: max(m.norm, 8) == 8),
    ("top1 == ' w48'", lambda m: m.top1 == " w48"),
    ("top1 == token", lambda m: m.top1 == m.token),
    ("p(' w48') > 0.02", lambda m: m.p(" w48") > 0.02),
    ("p(' w48') > p(' w49') if step > 0 else False", lambda m: m.p(" w48") > m.p(" w49") if m.step else False),
    ("min((step, 2)) == 2", lambda m: m.step >= 2),
    ("(step, position) == (1, 9)", lambda m: (m.step, m.position) == (1, 9)),
    ("(step == 1) + (position == 9) >= 1", lambda m: m.step == 1 or m.position == 9),
    ("-abs(step - 2) == 0 and step in ()", lambda m: False),
    ("False", lambda m: False),
]


@pytest.mark.parametrize(("text", "holds"), CASES, ids=[text for text, _ in CASES])
def test_a_condition_holds_where_a_plain_evaluation_says(
    desk: Desk, moments: list[SiteValue], text: str, holds: Callable[[SiteValue], Any]
) -> None:
    """The run stops in each pass that has such a position, and reports the first one."""
    expected: dict[int, int] = {}
    for moment in moments:
        if holds(moment):
            expected.setdefault(moment.step, moment.position)
    if text.startswith("step"):  # true of a whole pass: the last position is told
        expected = {m.step: m.position for m in moments if m.step in expected}
    number = desk.stop_at(LAYER, text)
    assert {stop.step: stop.matched for stop in stops(desk)} == expected
    described = desk.ask(ask.Describe(session="a")).session.breakpoints[0]
    assert (described.number, described.hits, described.when) == (number, len(expected), text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p(' w48')", "`p(' w48')` is a number, and a condition has to be true or false"),
        ("top1", "compare it, as in `top1 == ' Paris'`"),
        ("(1, 2)", "`(1, 2)` is several values"),
        ("max(step, 3)", "`max(step, 3)` is a number"),
        ("step == 'a'", "`step` is a number, and `'a'` is a text: a comparison is of two of a kind"),
        ("1 < step < token", "`step` is a number, and `token` is a text"),
        ("step in ('a', 2)", "`step` is a number, and `('a', 2)` is several values"),
        ("step in 'abc'", "`'abc'` is a text"),
        ("step in 3", "`3` is a number"),
        ("(step > 1) == 1", "`step > 1` is true or false, and `1` is a number"),
        ("step > 0 and norm", "`norm` is a number"),
        ("not token", "`token` is a text"),
        ("step > 0 if step else False", "`step` is a number"),
        ("token + 'a' == 'ba'", "`token` is a text, and arithmetic is for numbers"),
        ("abs(token) > 1", "arithmetic is for numbers"),
        ("len(step) > 1", "`step` is a number, which has no length"),
        ("max(step, token) == 1", "one of them is taken"),
        ("min(step) == 1", "min takes two values or more"),
        ("len(token, token) == 1", "len takes one value"),
        ("not " * 498 + "True", "nested"),
        ("1 < (" * 90 + "step" + ") < 2" * 90, "`1` is a number, and"),
    ],
)
def test_what_is_neither_true_nor_false_is_not_armed(desk: Desk, text: str, said: str) -> None:
    with pytest.raises(InvalidCondition) as refused:
        desk.stop_at(LAYER, text)
    assert said in str(refused.value)
    assert desk.ask(ask.Describe(session="a")).session.breakpoints == ()


class Row:
    """A scope of one number, at which a comparison is evaluated as any expression is."""

    def __init__(self, number: float) -> None:
        self.number = number

    def read(self, name: str) -> float:
        return self.number

    def of_token(self, name: str, token: str | int) -> float:
        raise AssertionError("a comparison of numbers reads no token")


@pytest.mark.parametrize("name", ["value", "norm"])
@pytest.mark.parametrize("sign", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("number", ["0", "0.5", "-0.5", "1e9"])
def test_a_comparison_of_all_rows_finds_what_an_evaluation_of_each_does(name: str, sign: str, number: str) -> None:
    condition = parse(f"{name} {sign} {number}")
    assert condition.comparison.name == name
    for numbers in ([], [-1.0], [0.5], [float("nan"), -0.5, 0.0, 0.5, 2e9], [2e9, 0.0], [-3.0, -0.5]):
        holding = (row for row, found in enumerate(numbers) if condition.holds(Row(found)))
        assert [row for row, found in enumerate(numbers) if condition.comparison.holds(found)] == list(holding)


@pytest.mark.parametrize("text", ["value > step", "0 < value < 1", "not value > 1", "value in (1, 2)", "step > 1"])
def test_what_is_more_than_one_comparison_is_evaluated_at_each_row(text: str) -> None:
    assert parse(text).comparison is None


def test_a_condition_reads_the_value_after_the_rules(desk: Desk) -> None:
    desk.stop_at(LAYER, "norm < 0.001")
    assert stops(desk) == []
    desk.steer(f"resid_post.{LAYER}", Zero(), positions=(10,))
    assert [(stop.step, stop.matched) for stop in stops(desk)] == [(2, 10)]


def test_a_norm_is_that_of_the_selected_heads(desk: Desk) -> None:
    desk.stop_at(f"z.{LAYER}[1]", "norm > 0")
    stop = stops(desk)[0]
    assert stop.site == f"z.{LAYER}[1]"
    desk.run(PROMPT, NEW)
    part = desk.value()
    assert part.shape == (len(PROMPT), 1, 8)
    limit = float(part[:, 0].norm(dim=-1).max())
    desk.clear()
    desk.stop_at(f"z.{LAYER}[1]", f"norm >= {limit:.9f} and step == 0")
    assert stops(desk)[0].matched == int(part[:, 0].norm(dim=-1).argmax())


def test_a_condition_that_cannot_be_evaluated_ends_the_run_and_says_so(desk: Desk) -> None:
    desk.stop_at(LAYER, "1 / (position - 5) > 2")
    with pytest.raises(InvalidCondition, match="division by zero"):
        desk.run(PROMPT, NEW)
    assert desk.session().state == "idle"
    desk.clear()
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(plain_of("llama"), PROMPT, NEW)


def test_the_same_breakpoint_set_twice_is_one(desk: Desk) -> None:
    first = desk.ask(ask.SetBreakpoint(session="a", site="3", when="step > 0"))
    again = desk.ask(ask.SetBreakpoint(session="a", site="resid_post.3", when="step > 0"))
    other = desk.ask(ask.SetBreakpoint(session="a", site="3", when="step > 1"))
    assert (first.existed, again.existed, other.existed) == (False, True, False)
    assert again.breakpoint.number == first.breakpoint.number != other.breakpoint.number


def test_once_is_once(desk: Desk) -> None:
    desk.stop_at(LAYER, once=True)
    assert [stop.step for stop in stops(desk)] == [0]
    assert desk.ask(ask.Describe(session="a")).session.breakpoints == ()


def test_a_disabled_breakpoint_rests_until_it_is_enabled(desk: Desk) -> None:
    number = desk.stop_at(LAYER)
    desk.ask(ask.EnableBreakpoint(session="a", number=number, enabled=False))
    assert stops(desk) == []
    desk.ask(ask.EnableBreakpoint(session="a", number=number, enabled=True))
    assert [stop.step for stop in stops(desk)] == [0, 1, 2, 3, 4]
    assert desk.ask(ask.Describe(session="a")).session.breakpoints[0].hits == NEW


def test_a_free_run_meets_no_breakpoint_and_so_does_a_free_resume(desk: Desk) -> None:
    desk.stop_at(LAYER)
    assert stops(desk, free=True) == []
    desk.run(PROMPT, NEW)
    assert desk.resume(free=True).tokens == generate(plain_of("llama"), PROMPT, NEW).tokens


def test_breakpoints_at_one_place_are_one_stop_that_names_both(desk: Desk) -> None:
    desk.stop_at("resid_post.3", "step == 1")
    desk.stop_at("resid_pre.4", "step == 1")
    desk.stop_at("resid_post.3", "position == 9")
    found = stops(desk)
    assert len(found) == 1
    assert sorted([found[0].site, *found[0].also]) == ["resid_post.3", "resid_post.3", "resid_pre.4"]
    assert [b.hits for b in desk.ask(ask.Describe(session="a")).session.breakpoints] == [1, 1, 1]


def test_breakpoints_are_cleared_by_site_number_or_all(desk: Desk) -> None:
    _, two, three, four = (desk.stop_at(site) for site in ("z.5[1]", "2", "mlp_out.6", "7"))
    assert desk.ask(ask.ClearBreakpoints(session="a", sites=("z.5[1]", str(two)))).count == 2
    left = [b.number for b in desk.ask(ask.Describe(session="a")).session.breakpoints]
    assert left == [three, four]
    assert desk.ask(ask.ClearBreakpoints(session="a")).count == 2


def test_a_breakpoint_set_while_a_run_is_under_way_is_met(desk: Desk) -> None:
    ends: list[Any] = []
    desk.post(ask.Run(session="a", tokens=PROMPT, max_new_tokens=NEW, ignore_eos=True), ends)
    desk.engine.tick()
    desk.stop_at(LAYER, "step > 2")
    while not ends:
        desk.engine.tick()
    assert (ends[0].step, ends[0].site) == (3, "resid_post.3")
    assert desk.resume().step == 4
    assert desk.resume().tokens == generate(plain_of("llama"), PROMPT, NEW).tokens


@pytest.mark.parametrize("text", ["step", "position", "token", "token_id", "norm", "top1", "p(' w7')", "norm * 2 > 1"])
def test_an_expression_is_at_a_stop_what_a_breakpoint_reads_there(desk: Desk, text: str) -> None:
    desk.stop_at(LAYER, "step == 0")
    desk.run(PROMPT, NEW)
    found = desk.ask(ask.Evaluate(session="a", expression=text, position=4))
    assert (found.site, found.position) == (f"resid_post.{LAYER}", 4)
    literal = repr(found.value)
    desk.clear()
    desk.stop_at(LAYER, f"position == 4 and ({text}) == {literal}")
    assert desk.run(PROMPT, NEW).matched == 4


def test_an_expression_that_means_nothing_is_refused(desk: Desk) -> None:
    desk.stop_at(LAYER, "step == 0")
    desk.run(PROMPT, NEW)
    for text in ("weather", "(1, 2)", "1 / 0", "__import__('os')"):
        with pytest.raises(InvalidCondition):
            desk.ask(ask.Evaluate(session="a", expression=text))


def test_readings_are_those_of_torch() -> None:
    logits_V = torch.tensor([0.5, 3.0, -1.0, 2.0])
    assert of_token("logit", logits_V, 3) == 2.0
    assert of_token("prob", logits_V, 3) == of_token("p", logits_V, 3) == float(logits_V.softmax(-1)[3])
    order = logits_V.argsort(descending=True).tolist()
    assert [of_token("rank", logits_V, token) for token in order] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["logit", "prob", "p", "rank"])
def test_a_token_without_a_number_has_no_reading(name: str) -> None:
    assert math.isnan(of_token(name, torch.tensor([0.5, math.nan, 1.0]), 1))


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_has_the_gradient_that_it_declares_or_says_why_none(name: str) -> None:
    reading, logits_V, step = READINGS[name], torch.tensor([0.5, 3.0, -1.0, 2.0], dtype=torch.float64), 1e-5
    found_V = torch.zeros_like(logits_V)
    if reading.add_slope is None:
        assert reading.why_none
        return
    reading.add_slope(found_V, 2.0, logits_V, 3)
    ahead, behind = (
        [reading.of(logits_V + way, 3) for way in ways] for ways in (step * torch.eye(4), -step * torch.eye(4))
    )
    slopes = [2.0 * (one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True)]
    assert found_V.tolist() == pytest.approx(slopes, abs=1e-6)
