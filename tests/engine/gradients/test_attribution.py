"""Attribution by gradients is that of autograd on the plain model, of finite differences, and of exact sweeps where
the metric is linear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import InvalidCondition, SlabFull, UsageError
from djinn_jupyter.methods.attribution.engine import line
from djinn_jupyter.methods.attribution.engine.attributing import Attributing
from djinn_jupyter.methods.attribution.engine.line import GradedLine
from djinn_jupyter.methods.sweep.request import Estimate, Sweep, Swept
from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import Scale, Zero
from tests.engine.desk import Desk, build_desk, tokens
from tests.engine.gradients import plain_gradients
from tests.families import build

LAYERS = 2
CORRUPTED = tokens(12)
CLEAN = (*CORRUPTED[:5], *tokens(12, seed=2)[5:])
A, B = 17, 42
METRIC = f"logit({A}) - logit({B})"
KINDS = (
    ("llama", torch.bfloat16),
    ("gpt2", torch.float32),  # learned positions, fused projections
    ("gemma3_text", torch.float32),  # windows beside full attention, two rotaries
    ("gemma2", torch.bfloat16),  # soft caps
    ("mixtral", torch.float32),  # experts
    ("deepseek_v3", torch.float32),  # keys and values of different widths
)


@pytest.fixture(scope="module")
def desk() -> Any:
    desk = build_desk(build("llama", layers=LAYERS).double())
    yield desk
    desk.close_all()


def asked(desk: Desk, **fields: Any) -> Any:
    desk.open("a")
    known = {"corrupted": CORRUPTED, "site": "resid_post", "over": ("layer", "position"), "metrics": (METRIC,)}
    return desk.ask(Sweep(session="a", **{**known, **fields}))


def attributed(desk: Desk, *, steps: int = 1, **fields: Any) -> Any:
    return asked(desk, estimate=Estimate(steps=steps), **fields)


def values(reply: Any) -> Tensor:
    assert isinstance(reply, Swept), reply
    return to_tensor(reply.measured[0].values)


@pytest.mark.parametrize(("family", "dtype"), KINDS)
def test_the_scores_are_those_of_autograd_on_the_plain_model(family: str, dtype: torch.dtype) -> None:
    model = build(family, layers=LAYERS).to(dtype)
    expected = plain_gradients.attributed(model, CLEAN, CORRUPTED, A, B)
    desk = build_desk(model)
    found = values(attributed(desk, clean=CLEAN))
    assert expected.abs().max() > 0
    most = 1e-4 if dtype == torch.float32 else 0.05
    assert (found - expected).norm() <= most * expected.norm()
    desk.close_all()


@pytest.mark.parametrize(
    ("site", "over"),
    [
        ("q", ("head", "layer")),
        ("v.1", ("position", "head")),
        ("mlp_post", ("layer", "neuron")),
        ("resid_mid", ("layer", "position")),
    ],
)
def test_gradient_times_activation_is_what_a_small_scale_does(desk: Desk, site: str, over: tuple[str, ...]) -> None:
    small = 1e-2
    up, down = (
        values(asked(desk, site=site, over=over, edit=Scale(factor=1 + by), mode="exact")) for by in (small, -small)
    )
    expected = (up - down) / (2 * small)
    found = values(attributed(desk, site=site, over=over))
    assert found.shape == expected.shape
    assert expected.abs().max() > 0.01
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max() + 1e-4


def test_where_the_metric_is_linear_the_scores_are_the_changes_of_an_exact_sweep() -> None:
    model = build("gpt2", layers=LAYERS).double()
    model.transformer.ln_f = torch.nn.Identity()
    desk = build_desk(model)
    last = {"clean": CLEAN, "site": f"mlp_out.{LAYERS - 1}", "over": ("position",)}
    swept = asked(desk, mode="exact", **last)
    changes = values(swept) - swept.measured[0].corrupted
    found = attributed(desk, **last)
    assert changes[-1].abs() > 0.01
    assert (values(found) - changes).abs().max() < 1e-5
    assert found.measured[0].clean == pytest.approx(swept.measured[0].clean, abs=1e-6)
    desk.close_all()


def test_integrated_gradients_of_the_first_residual_sum_to_the_whole_change(desk: Desk) -> None:
    first = {"clean": CLEAN, "site": "resid_pre.0", "over": ("position",)}
    reply = attributed(desk, steps=40, **first)
    whole = reply.measured[0].clean - reply.measured[0].corrupted
    one = values(attributed(desk, **first)).sum()
    assert abs(values(reply).sum() - whole) < 5e-3 * abs(whole)
    assert abs(one - whole) > 0.1 * abs(whole)


def test_windows_pairs_and_positions_add_up(desk: Desk) -> None:
    every = values(attributed(desk, clean=CLEAN))
    some = values(attributed(desk, clean=CLEAN, positions=(7, 5)))
    windowed = values(attributed(desk, clean=CLEAN, windows=(("position", 3),)))
    pairs = values(attributed(desk, clean=CLEAN, over=("layer",), in_pairs=True))
    by_layer = values(attributed(desk, clean=CLEAN, over=("layer",)))
    assert torch.equal(some, every[:, [5, 7]])
    assert torch.allclose(windowed[:, 6], every[:, 6:9].sum(1), rtol=1e-12)
    assert torch.equal(windowed[:, -1], every[:, -1])
    assert torch.allclose(by_layer, every.sum(1), rtol=1e-12)
    assert torch.equal(pairs.diagonal(), by_layer)
    assert torch.equal(pairs[0, 1], by_layer.sum())


def test_several_points_are_an_axis(desk: Desk) -> None:
    reply = attributed(desk, clean=CLEAN, site="*.1", over=("position", "point"))
    points = reply.places[1]
    alone = values(attributed(desk, clean=CLEAN, site="mlp_out.1", over=("position",)))
    assert torch.equal(values(reply)[:, points.index("mlp_out")], alone)


def test_aligned_positions_of_a_line_of_another_length_are_patched(desk: Desk) -> None:
    longer = (5, *CLEAN)
    reply = attributed(desk, clean=longer, align=((7, 8), (11, 12)))
    exact = asked(desk, clean=longer, align=((7, 8), (11, 12)), mode="exact")
    assert values(reply).shape == (LAYERS, 2)
    assert reply.places == exact.places
    assert values(reply)[-1, 0] == 0.0  # behind the last layer the last position alone is read
    assert (values(exact)[-1, 0], reply.measured[0].clean) == (exact.measured[0].corrupted, exact.measured[0].clean)


def test_zeroing_is_estimated_as_minus_gradient_times_activation(desk: Desk) -> None:
    plain, zeroed = attributed(desk), attributed(desk, edit=Zero())
    assert torch.equal(values(zeroed), -values(plain))
    assert (plain.edit, zeroed.edit) == ("gradient x activation", "gradient x zero")


def test_scores_that_a_mask_hides_add_nothing() -> None:
    desk = build_desk(build("llama", layers=LAYERS, attention="eager"))
    scores = {"site": "attn_scores.1", "over": ("head",)}
    plain = values(attributed(desk, **scores))
    doubled = values(attributed(desk, edit=Scale(factor=2.0), **scores))  # twice what hides a score is infinite
    assert plain.abs().max() > 0
    assert torch.equal(doubled, plain)
    desk.close_all()


def test_each_metric_has_its_own_gradient_and_a_product_that_of_its_factors(desk: Desk) -> None:
    both = (f"prob({A})", f"logit({B})", f"prob({A}) * logit({B}) / 2 - abs(logit({A}))", f"logit({A})")
    reply = attributed(desk, clean=CLEAN, metrics=both)
    p, b, mixed, a = (to_tensor(one.values) for one in reply.measured)
    at_p, at_b, _, at_a = (one.corrupted for one in reply.measured)
    sign = 1 if at_a > 0 else -1
    assert torch.allclose(mixed, (p * at_b + at_p * b) / 2 - sign * a, rtol=1e-4, atol=1e-6)
    assert torch.equal(a, values(attributed(desk, clean=CLEAN, metrics=(f"logit({A})",))))


def test_layers_made_again_on_the_way_back_give_the_same_bits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = attributed(desk, clean=CLEAN, site="z", over=("layer", "head"))
    onward = GradedLine.onward
    monkeypatch.setattr(GradedLine, "onward", lambda self, *meet, **how: onward(self, *meet, **{**how, "keep": False}))
    again = attributed(desk, clean=CLEAN, site="z", over=("layer", "head"))
    assert torch.equal(values(kept), values(again))


def test_a_short_budget_has_layers_made_again_and_a_shorter_one_says_so_in_one_sentence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take, most = Reservation.take, [2**62]

    def short(self: Reservation, size: int) -> Any:
        taken.append(size)
        if size > most[0]:
            raise SlabFull("There is no page.")
        return (yield from take(self, size))

    monkeypatch.setattr(Reservation, "take", short)
    expected = values(attributed(desk, clean=CLEAN))
    most[0] = taken[0] - 1
    reply = attributed(desk, clean=CLEAN)
    assert torch.equal(values(reply), expected)
    assert "made again on the way back" in reply.notes[0]
    most[0] = 0
    with pytest.raises(SlabFull, match="has no room, even with each layer's graph made again"):
        attributed(desk, clean=CLEAN)
    assert desk.engine.budget.held()["sweeps"] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clean": CLEAN, "metrics": (f"rank({A})",)}, "has no gradient"),
        ({"steps": 4}, "go from the corrupted line to the clean one"),
        ({"clean": CLEAN[:-1]}, "positions do not correspond"),
    ],
)
def test_what_has_no_gradient_is_refused_in_one_sentence(desk: Desk, fields: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidCondition, UsageError), match=words):
        attributed(desk, **fields)


def test_a_family_without_a_way_back_says_why() -> None:
    recurrent = build_desk(build("mamba2", layers=LAYERS))
    with pytest.raises(UsageError, match="gives no gradients: its layers keep recurrent states"):
        attributed(recurrent, clean=CLEAN)
    recurrent.close_all()


ALL_LAYERS = Sweep(
    session="a", corrupted=CORRUPTED, clean=CLEAN, site="z", over=("layer", "head"), metrics=(METRIC,),
    estimate=Estimate(),
)  # fmt: skip


def test_other_requests_are_answered_between_two_layers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open("b")
    desk.open("a")
    replies: list[Any] = []
    described: list[Any] = []
    answered: list[int] = []
    count = Attributing._count

    def ask_too(own: Attributing, layers: int) -> None:
        count(own, layers)
        answered.append(len(described))
        desk.post(ask.Describe(session="b"), described)

    monkeypatch.setattr(Attributing, "_count", ask_too)
    desk.post(ALL_LAYERS, replies)
    while not replies:
        desk.engine.tick()
    assert isinstance(replies[0], Swept)
    assert len(answered) > 2 * LAYERS
    assert answered[2:] == list(range(2, len(answered)))  # the first layer's are asked with those before it
    assert desk.describe("a").progress is None


@pytest.mark.parametrize(("seconds", "others", "sliced"), [(0.0, False, True), (1e9, True, True), (1e9, False, False)])
def test_an_attribution_gives_way_to_other_jobs_and_at_the_end_of_a_slice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seconds: float, others: bool, sliced: bool
) -> None:
    monkeypatch.setattr(line, "SLICE_SECONDS", seconds)
    desk.open("b")
    desk.open("a")
    replies: list[Any] = []
    desk.post(ALL_LAYERS, replies)
    if others:
        desk.post(ask.Run(session="b", tokens=CLEAN, max_new_tokens=100, ignore_eos=True), [])
    ticks = 0
    while not replies:
        desk.engine.tick()
        ticks += 1
    desk.close("a", "b")
    assert (ticks > 2 * LAYERS) == sliced
