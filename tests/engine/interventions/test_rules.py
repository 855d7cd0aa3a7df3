"""Steering rules and watches: when they hold, what they record. Each rule of a site takes the operations of its formula
and three of its size, on what the one before left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from djinn_jupyter.engine.passes import edits
from djinn_jupyter.engine.passes.breakpoints import Rule
from djinn_jupyter.engine.passes.site_value import SiteValue
from djinn_jupyter.engine.system.arrays import to_tensor
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
from tests.engine.methods.rule_hooks import EDITS
from tests.engine.plain import generate, plain_of

PROMPT = tokens(12)
NEW = 5
V = torch.randn(32, generator=torch.Generator().manual_seed(1))
states_too = pytest.mark.parametrize("desk", ["llama", "jamba"], indirect=True)


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = desk_of(getattr(request, "param", "llama"))
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


@states_too
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


def test_the_same_rule_twice_is_one_and_a_fork_has_its_own_books(desk: Desk) -> None:
    first = desk.steer("resid_post.4", Scale(factor=1.25))
    assert desk.steer("resid_post.4", Scale(factor=1.25)).existed
    assert not first.existed
    desk.run(PROMPT, NEW)
    desk.fork("b")
    assert rules(desk, "b")[0].passes_met == 0
    desk.run(PROMPT, 2, "b")
    assert (rules(desk)[0].passes_met, rules(desk, "b")[0].passes_met) == (NEW, 2)


@states_too
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


def watched(desk: Desk, site: str, **options: Any) -> WatchDescription:
    return desk.ask(ask.Watch(session="a", site=site, **options)).watch


@states_too
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
    watched(desk, "z.4")
    assert desk.ask(ask.Unwatch(session="a", site="4")).count == 1
    assert desk.ask(ask.Unwatch(session="a")).count == 1
    with pytest.raises(UnknownSite, match="watched here: nothing"):
        desk.ask(ask.ReadWatch(session="a", site="4"))


ONES = torch.ones(12, 32)


def steer(desk: Desk, site: str, edit: Edit, name: str = "a", **limits: Any) -> RuleDescription:
    return desk.ask(ask.Steer(session=name, site=site, edit=edit, **limits)).rule


def test_a_rule_of_every_layer_is_one_rule_however_often_its_pass_stops(desk: Desk) -> None:
    rule = steer(desk, "resid_post.*", Add(vector=array(V), coef=0.01))
    assert (rule.site, rule.what) == ("resid_post.*", "add [32] x 0.01 at resid_post.*")
    finished = desk.run(PROMPT, NEW)
    expected = desk.outcome(finished)
    assert (finished.rules[0].passes_met, finished.rules[0].passes_changed) == (NEW, NEW)
    assert len(finished.rules[0].relative_sizes) == NEW * desk.layers
    desk.stop_at("resid_post.3")
    for _ in range(NEW):
        desk.run(PROMPT, NEW) if desk.session().state == "idle" else desk.resume()
    finished = desk.resume()
    assert desk.outcome(finished) == expected
    assert finished.rules[0].passes_met == NEW


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


# of a kind's formula, without those on the edit's own array
OPERATIONS = {Scale: 1, Add: 1, Clamp: 1, ProjectOut: 5, NormMatch: 4, Orthogonal: 5, ProjectionCap: 6}


class Counted(TorchDispatchMode):
    """Counts the operations that run inside it, and apart from them the casts, which find nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.casts = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cast = function is torch.ops.aten.to.dtype
        self.count, self.casts = self.count + (not cast), self.casts + cast
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "edit", [edit for edit, _ in EDITS if type(edit) in OPERATIONS], ids=lambda edit: type(edit).__name__
)
def test_one_more_rule_of_a_site_takes_the_operations_of_its_formula_and_three(desk: Desk, edit: Edit) -> None:
    number = desk.steer("resid_post.4", edit).rule.number
    rule, raw = desk.session().rules[number], torch.randn(1, len(PROMPT), 32, device=DEVICE)
    positions = range(len(PROMPT))
    met = SiteValue(tap=rule.taps[0], raw=raw, tokens=PROMPT, positions=positions, step=0, lens=None)
    with torch.inference_mode():
        assert rule.apply(met, counted=True) is not None  # its arrays are on the device from here on
        with Counted() as operations:
            rule.apply(met, counted=True)
    assert operations.count == OPERATIONS[type(edit)] + 3
    assert operations.casts <= 3  # of the value before, for the formula and the size, and of the one after


def test_a_rule_of_every_layer_is_marked_once_in_a_pass(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.steer("resid_post.*")
    marked, mark = [], Rule.mark
    monkeypatch.setattr(Rule, "mark", lambda rule: marked.append(1) or mark(rule))
    desk.run(PROMPT, NEW)
    assert len(marked) == NEW


def test_rules_of_one_site_apply_one_after_another(desk: Desk) -> None:
    desk.steer("resid_post.4", Scale(factor=1.5))
    desk.steer("resid_post.4", Zero(), positions=(5,))
    desk.steer("resid_post.4", Add(vector=array(V), coef=0.5))
    model = plain_of("llama")
    zeroed = at([5], lambda row: row * 0)
    with steered(model, lambda h, fed: zeroed(h * 1.5, fed) + 0.5 * vector(h)):
        expected = generate(model, PROMPT, NEW)
    assert desk.outcome(desk.run(PROMPT, NEW)) == expected
