"""Steering rules, and when they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.system.arrays import to_array, to_tensor
from djinn_jupyter.errors import InvalidCondition, InvalidEdit, UnknownSite, UsageError
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import (
    Add,
    Clamp,
    Edit,
    NormMatch,
    Orthogonal,
    ProjectionCap,
    ProjectOut,
    Scale,
    Set,
    Zero,
)
from djinn_jupyter.wire.looks import Direction
from djinn_jupyter.wire.nouns import RuleDescription, WatchDescription
from djinn_jupyter.wire.replies import RuleRefused
from tests.device import DEVICE
from tests.engine.desk import Desk, Outcome, array, desk_of, tokens
from tests.engine.plain import generate, plain_of

pytestmark = pytest.mark.drawn

PROMPT = tokens(12)
NEW = 5
V = torch.randn(32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["llama", "gemma3_text", "jamba"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(request.param)
    desk.open()
    yield desk
    desk.close_all()


def family(desk: Desk) -> str:
    return str(desk.engine.model.config.model_type)


@contextmanager
def steered(model: Any, change: Callable[[Tensor, int], Tensor], layer: int = 4) -> Iterator[None]:
    """The plain model, the output of a layer changed in every pass; `change` is told the position of its first row."""
    fed = 0

    def after(module: Any, args: Any, output: Any) -> Any:
        nonlocal fed
        hidden = output[0] if isinstance(output, tuple) else output
        changed = change(hidden.clone(), fed)
        fed += hidden.shape[1]
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    hook = model.model.layers[layer].register_forward_hook(after)
    try:
        yield
    finally:
        hook.remove()


def at(positions: list[int], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    def changed(hidden: Tensor, fed: int) -> Tensor:
        for row in range(hidden.shape[1]):
            if fed + row in positions:
                hidden[0, row] = change(hidden[0, row])
        return hidden

    return changed


def vector(hidden: Tensor) -> Tensor:
    return V.to(hidden.device)


def unit(hidden: Tensor) -> Tensor:
    """Return the unit vector of V for each row."""
    v = vector(hidden).expand_as(hidden)
    return v / (v * v).sum(-1, keepdim=True).sqrt()


def along(hidden: Tensor) -> Tensor:
    return (hidden * unit(hidden)).sum(-1, keepdim=True)


def without(hidden: Tensor) -> Tensor:
    v = vector(hidden)
    return hidden - (hidden * v).sum(-1, keepdim=True) * v / (v * v).sum(-1, keepdim=True)


EDITS: list[tuple[Edit, dict[str, Any], Callable[[Tensor, int], Tensor]]] = [
    (Add(vector=array(V), coef=0.5), {}, lambda h, fed: h + 0.5 * vector(h)),
    (Scale(factor=1.5), {}, lambda h, fed: h * 1.5),
    (Clamp(low=-1.0, high=1.0), {}, lambda h, fed: h.clamp(-1, 1)),
    (ProjectOut(direction=array(V)), {}, lambda h, fed: without(h)),
    (
        NormMatch(vector=array(V), coef=0.5),
        {},
        lambda h, fed: h + 0.5 * h.norm(dim=-1, keepdim=True) * unit(h),
    ),
    (Orthogonal(direction=array(V), coef=2.5), {}, lambda h, fed: h + (2.5 - 1) * along(h) * unit(h)),
    (
        ProjectionCap(direction=array(V), low=-0.1, high=0.1),
        {},
        lambda h, fed: h + (along(h).clamp(-0.1, 0.1) - along(h)) * unit(h),
    ),
    (Set(value=array(V)), {"positions": (3, 13)}, at([3, 13], vector)),
    (Zero(), {"positions": (5,)}, at([5], lambda row: row * 0)),
]


@pytest.mark.parametrize(("edit", "where", "change"), EDITS, ids=[type(edit).__name__ for edit, _, _ in EDITS])
def test_a_rule_is_a_hook_that_stays(
    desk: Desk, edit: Edit, where: dict[str, Any], change: Callable[[Tensor, int], Tensor]
) -> None:
    desk.steer("resid_post.4", edit, **where)
    model = plain_of(family(desk))
    with steered(model, change):
        expected = generate(model, PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected
    assert not torch.equal(expected.logits, generate(model, PROMPT, NEW).logits)
    desk.ask(ask.Unsteer(session="a"))
    assert desk.outcome(desk.run(PROMPT, NEW)) == generate(model, PROMPT, NEW)


def test_a_rule_of_negative_positions_means_the_end_of_each_pass(desk: Desk) -> None:
    desk.steer("resid_post.4", Zero(), positions=(-1,))
    model = plain_of(family(desk))

    def last_row(hidden: Tensor, fed: int) -> Tensor:
        hidden[0, -1] = 0
        return hidden

    with steered(model, last_row):
        expected = generate(model, PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected


def rules(desk: Desk, name: str = "a") -> tuple[RuleDescription, ...]:
    return tuple(desk.ask(ask.Describe(session=name)).session.rules)


def test_the_books_of_a_rule_say_what_it_met_and_changed(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=1.25))
    desk.steer("resid_post.4", Zero(), positions=(13, 14))
    desk.steer("resid_post.5", Zero(), positions=(400,))
    finished = desk.run(PROMPT, NEW)
    always, sometimes, never = finished.rules
    assert (always.passes_met, always.passes_changed) == (NEW, NEW)
    assert always.last_relative_size == pytest.approx(0.25)
    assert always.mean_relative_size == pytest.approx(0.25)
    assert (sometimes.passes_met, sometimes.passes_changed, sometimes.last_relative_size) == (NEW, 2, 1.0)
    assert (never.passes_met, never.passes_changed, never.last_relative_size) == (NEW, 0, None)
    assert rules(desk) == finished.rules
    assert desk.run(PROMPT, 2).rules[0].passes_met == 2, "a new run has new counts"


def test_a_rule_that_changes_no_bit_has_changed_no_pass(desk: Desk) -> None:
    direction = array(torch.ones(32))
    desk.steer("resid_post.4", ProjectionCap(direction=direction, low=-1e6, high=1e6))
    desk.steer("resid_post.*", Scale(factor=1.0))
    desk.steer("resid_post.4", Scale(factor=0.5), positions=(14,))
    capped, unscaled, once = desk.run(PROMPT, NEW).rules
    assert [(one.passes_met, one.passes_changed, one.last_relative_size) for one in (capped, unscaled)] == [
        (NEW, 0, None),
        (NEW, 0, None),
    ]
    assert (once.passes_changed, once.relative_sizes) == (1, (0.5,))


def test_the_books_of_a_pass_that_is_run_again_are_closed_also_where_they_were_read(desk: Desk) -> None:
    made = desk.steer("resid_post.4", Scale(factor=1.25)).rule
    desk.run(PROMPT, 2)
    rule = desk.session().rules[made.number]
    before = rule.sizes()
    rule.passes_met += 1
    rule._unread.append((rule.passes_met, edits.sizes(torch.ones(2), torch.zeros(2))))
    go_back = rule.mark()
    rule.passes_met += 1
    rule._unread.append((rule.passes_met, edits.sizes(torch.ones(2), torch.zeros(2))))
    assert rule.sizes() == (*before, 1.0, 1.0)
    go_back()
    assert (rule.sizes(), rule.passes_met, rule.passes_changed) == ((*before, 1.0), 3, 3)


def test_looking_and_going_back_by_layers_keep_no_books(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=1.25))
    desk.stop_at("resid_post.6", "step == 1")
    desk.run(PROMPT, NEW)
    before = rules(desk)
    desk.value("resid_post.2")
    desk.value("logits", ahead=True)
    desk.ask(ask.MeasureEffect(session="a"))
    assert rules(desk) == before
    assert before[0].passes_met == 2


def test_a_rule_met_in_a_stopped_pass_is_met_once(desk: Desk) -> None:
    """Steps and resumes within one pass do not apply it again."""
    desk.steer("resid_post.4", Scale(factor=1.25))
    expected = desk.outcome(desk.run(PROMPT, NEW))
    for site in ("resid_post.4", "resid_pre.5", "mlp_in.5", "mlp_out.4", "resid_pre.4"):
        desk.clear()
        desk.stop_at(site)
        desk.run(PROMPT, NEW)
        for _ in range(NEW):
            finished = desk.resume()
        assert desk.outcome(finished) == expected, site
        assert finished.rules[0].passes_met == NEW, site


def test_several_rules_at_one_site_apply_in_the_order_they_were_given(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=2.0))
    desk.steer("resid_post.4", Add(vector=array(V)))
    model = plain_of(family(desk))
    with steered(model, lambda h, fed: h * 2.0 + vector(h)):
        assert desk.outcome(desk.run(PROMPT, NEW)) == generate(model, PROMPT, NEW)


def test_the_same_rule_twice_is_one_and_a_fork_has_its_own_books(desk: Desk) -> None:
    first = desk.steer("resid_post.4", Scale(factor=1.25))
    assert desk.steer("resid_post.4", Scale(factor=1.25)).existed
    assert not first.existed
    desk.run(PROMPT, NEW)
    desk.fork("b")
    assert rules(desk, "b")[0].passes_met == 0
    desk.run(PROMPT, 2, "b")
    assert (rules(desk)[0].passes_met, rules(desk, "b")[0].passes_met) == (NEW, 2)


def test_a_rule_is_taken_up_and_dropped_in_the_middle_of_a_run(desk: Desk) -> None:
    desk.stop_at("resid_post.6", "step in (1, 3)")
    desk.run(PROMPT, NEW)
    number = desk.steer("resid_post.4", Scale(factor=1.25)).rule.number
    desk.resume()
    desk.ask(ask.Unsteer(session="a", number=number))
    model = plain_of(family(desk))
    passes = iter(range(NEW))
    with steered(model, lambda h, fed: h * 1.25 if next(passes) in (2, 3) else h):
        assert desk.outcome(desk.resume()) == generate(model, PROMPT, NEW)


# --- watches ---------------------------------------------------------------------------------------------------------


def watched(desk: Desk, site: str, **options: Any) -> WatchDescription:
    return desk.ask(ask.Watch(session="a", site=site, **options)).watch


def test_a_watch_records_every_pass_and_changes_no_bit(desk: Desk) -> None:
    for site in ("resid_post.4", "mlp_out.5", "logits", "resid_post.4[3:5]"):
        watched(desk, site)
    outcome = desk.outcome(desk.run(PROMPT, NEW))
    model = plain_of(family(desk))
    assert outcome == generate(model, PROMPT, NEW)
    seen: list[Tensor] = []
    with steered(model, lambda h, fed: seen.append(h[0].cpu()) or h):
        generate(model, PROMPT, NEW)
    read = desk.ask(ask.ReadWatch(session="a", site="resid_post.4"))
    assert all(torch.equal(to_tensor(value), plain) for value, plain in zip(read.values, seen, strict=True))
    assert read.positions == (tuple(range(12)), *((position,) for position in range(12, 12 + NEW - 1)))
    part = desk.ask(ask.ReadWatch(session="a", site="resid_post.4[3:5]"))
    assert all(torch.equal(to_tensor(value), plain[:, 3:5]) for value, plain in zip(part.values, seen, strict=True))
    logits = desk.ask(ask.ReadWatch(session="a", site="logits"))
    assert logits.positions[0] == (11,)
    assert torch.equal(to_tensor(logits.values[-1])[0], outcome.logits)


def named(name: str, vector: Tensor) -> Direction:
    return Direction(name=name, vector=array(vector))


def components(desk: Desk, site: str, name: str | None) -> list[Tensor]:
    read = desk.ask(ask.ReadWatch(session="a", site=site, direction=name))
    assert read.watch.direction == name
    assert read.axes == ("T" if name else "T D")
    return [to_tensor(value) for value in read.values]


def test_a_watch_along_a_direction_records_the_component_of_every_pass_and_changes_no_bit(desk: Desk) -> None:
    watched(desk, "resid_post.4")
    watched(desk, "resid_post.4", direction=named("v", V))
    watched(desk, "resid_post.4", direction=named("longer", 3 * V))
    outcome = desk.outcome(desk.run(PROMPT, NEW))
    assert outcome == generate(plain_of(family(desk)), PROMPT, NEW)
    whole, seen = components(desk, "resid_post.4", None), components(desk, "resid_post.4", "v")
    normed = (V.double() / V.double().norm()).float().to(DEVICE)
    along_v = [(one.to(DEVICE).float() * normed).sum(-1) for one in whole]
    assert [one.tolist() for one in seen] == [one.tolist() for one in along_v]
    assert [len(one) for one in seen] == [12, *[1] * (NEW - 1)]
    for one, same in zip(components(desk, "resid_post.4", "longer"), seen, strict=True):
        torch.testing.assert_close(one, same)
    assert desk.ask(ask.Unwatch(session="a", site="4", direction="v")).count == 1
    assert [w.direction for w in desk.ask(ask.Describe(session="a")).session.watches] == [None, "longer"]


def test_a_name_means_one_direction_until_it_is_begun_afresh(desk: Desk) -> None:
    watched(desk, "resid_post.4", direction=named("v", V))
    desk.run(PROMPT, 2)
    assert watched(desk, "resid_post.4", direction=named("v", V)).passes == 2
    with pytest.raises(UsageError, match=r"resid_post.4 along v records another direction of that name; --fresh"):
        watched(desk, "resid_post.4", direction=named("v", -V))
    assert watched(desk, "resid_post.4", direction=named("v", -V), fresh=True).passes == 0
    with pytest.raises(UnknownSite, match=r"resid_post.4 is not watched; watched here: resid_post.4 along v"):
        desk.ask(ask.ReadWatch(session="a", site="4"))


@pytest.mark.parametrize(
    ("site", "vector", "said"),
    [
        ("resid_post.4", torch.ones(3), r"The direction has shape \[3\]; at resid_post.4 it has to be \[32\]"),
        ("resid_post.4", torch.tensor(1.0), r"The direction has shape \[\]; "),
        ("resid_post.4", torch.zeros(32), "The direction has the norm 0: "),
        ("resid_post.4", torch.full((32,), torch.nan), "The direction has the norm nan: "),
        (
            "resid_post.4[3:5]",
            V,
            r"A direction is of all features of a site, such as resid_post.4; resid_post.4\[3,4\]",
        ),
        ("pattern.4", V, r"A direction is of all features of a site, such as resid_post.4; pattern.4 has none"),
        ("z.4", V, r"z.4 has 4 heads: name the one of the direction, such as z.4\[0\]"),
    ],
)
def test_a_direction_that_a_site_cannot_have_is_refused(llama: Desk, site: str, vector: Tensor, said: str) -> None:
    llama.open()
    with pytest.raises(UsageError, match=said):
        watched(llama, site, direction=named("v", vector))
    assert llama.ask(ask.Describe(session="a")).session.watches == ()


def test_a_direction_of_one_head_is_of_that_head(llama: Desk) -> None:
    llama.open()
    watched(llama, "z.4")
    watched(llama, "z.4[2]", direction=named("first", torch.eye(8)[0]))
    llama.run(PROMPT, 2)
    heads = llama.ask(ask.ReadWatch(session="a", site="z.4")).values
    first = components(llama, "z.4[2]", "first")
    assert all(torch.equal(one, to_tensor(all_)[:, 2, 0]) for one, all_ in zip(first, heads, strict=True))


def test_a_watch_leaves_out_whole_passes_beyond_its_cap_and_counts_them(desk: Desk) -> None:
    row = 32 * 4
    watched(desk, "resid_post.4", byte_cap=14 * row)
    desk.run(PROMPT, NEW)
    described = desk.ask(ask.Describe(session="a")).session.watches[0]
    assert (described.passes, described.bytes_held, described.passes_left_out) == (3, 14 * row, 2)
    watched(desk, "resid_post.4", byte_cap=2 * row, fresh=True)
    desk.run(PROMPT, NEW)
    described = desk.ask(ask.Describe(session="a")).session.watches[0]
    assert (described.passes, described.bytes_held, described.passes_left_out) == (2, 2 * row, 3), (
        "the prompt alone is too large"
    )


def test_a_watch_keeps_the_records_of_all_runs_until_it_is_cleared(desk: Desk) -> None:
    desk.run(PROMPT, 1)
    watched(desk, "resid_post.4")
    prompts = (PROMPT, PROMPT[:5], PROMPT[3:])
    for prompt in prompts:
        desk.run(prompt, 2)
    desk.run((), 2, extend=True)
    read = desk.ask(ask.ReadWatch(session="a", site="resid_post.4"))
    runs = [run - read.runs[0] for run in read.runs]
    assert runs == [0, 0, 1, 1, 2, 2, 2, 2], "what extends a line belongs to its run"
    assert [len(positions) for positions in read.positions][:6:2] == [len(prompt) for prompt in prompts]
    watched(desk, "resid_post.4", fresh=True)
    desk.run(PROMPT[:5], 2)
    again = desk.ask(ask.ReadWatch(session="a", site="resid_post.4"))
    assert again.runs == (read.runs[-1] + 1,) * 2
    for value, same in zip(again.values, read.values[2:4], strict=True):
        assert torch.equal(to_tensor(value), to_tensor(same))


def test_a_watch_records_no_looks_and_each_pass_once(desk: Desk) -> None:
    watched(desk, "resid_post.4")
    desk.stop_at("resid_post.6", "step == 1")
    desk.run(PROMPT, NEW)
    desk.value("resid_post.2")
    desk.ask(ask.MeasureEffect(session="a"))
    desk.resume()
    assert desk.ask(ask.Describe(session="a")).session.watches[0].passes == NEW


def test_a_watch_that_ends_is_gone(desk: Desk) -> None:
    watched(desk, "resid_post.4")
    watched(desk, "z.5" if family(desk) == "jamba" else "z.4")
    assert desk.ask(ask.Unwatch(session="a", site="4")).count == 1
    assert desk.ask(ask.Unwatch(session="a")).count == 1
    with pytest.raises(UnknownSite, match="watched here: nothing"):
        desk.ask(ask.ReadWatch(session="a", site="4"))


ONES = torch.ones(12, 32)


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
