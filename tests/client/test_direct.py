"""`dj.direct` beside plain hooks, and scores of heads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.passes.epilogue import Readout
from djinn_jupyter.errors import DjinnError, UnknownSite, UsageError
from djinn_jupyter.methods.direct.card import attribution_view
from tests import families
from tests.client.reached import reached
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.engine.requests.plain_attribution import PlainAttribution, plain_attribution

pytestmark = pytest.mark.drawn

LINE, METRIC = tokens(9), "logit(17) - logit(42)"
FULL, HALF = torch.float32, torch.bfloat16
ROUNDED = {FULL: 1e-6, HALF: 2**-8}
"""Rounding of a head's part, as a fraction of the largest one."""

FAMILIES = (("llama", FULL), ("gpt_neox", FULL), ("gpt2", FULL), ("llama", HALF))


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def each(request: pytest.FixtureRequest) -> Iterator[tuple[RemoteEngine, PlainAttribution, torch.dtype]]:
    family, dtype = request.param
    plain = plain_attribution(plain_of(family, dtype), LINE, 17, 42)
    with reached(desk_of(family, dtype)) as [engine]:
        yield engine, plain, dtype


@pytest.mark.parametrize("over", ["layer", ("layer", "head")])
def test_parts_are_those_of_plain_hooks_and_sum_to_the_logit(
    each: tuple[RemoteEngine, PlainAttribution, torch.dtype], over: str | tuple[str, ...]
) -> None:
    engine, plain, dtype = each
    told = dj.direct(engine, LINE, metric=METRIC, over=over)
    largest = max(map(abs, plain.parts.values()))
    modules = [one for one in told.contributions if one.point != "bias"]
    assert {one.point for one in modules} == ({"attn_out", "mlp_out"} if over == "layer" else {"z", "mlp_out"})
    for one in modules:
        assert abs(one.value - plain.parts[one.point, one.layer, one.head]) < ROUNDED[dtype] * largest
    assert told.logit == plain.logit
    assert sum(told.columns()["value"]) == pytest.approx(plain.logit, abs=1e-9)
    assert abs(told.rest) < (1e-4 if dtype == FULL else 2**-6) * largest
    assert engine.sessions() == ()


def test_neurons_are_those_of_plain_hooks_and_sum_to_the_logit(
    each: tuple[RemoteEngine, PlainAttribution, torch.dtype],
) -> None:
    engine, plain, dtype = each
    told = dj.direct(engine, LINE, metric=METRIC, over=("layer", "head", "neuron"))
    largest = max(map(abs, plain.parts.values()))
    assert told.neurons.keys() == plain.neurons.keys()
    for layer, expected in plain.neurons.items():
        assert (torch.from_numpy(told.neurons[layer]) - expected).abs().max() < ROUNDED[dtype] * largest
    assert {one.point for one in told.contributions} == {"z", "bias", "mlp_bias"}
    assert sum(told.columns()["value"]) == pytest.approx(plain.logit, abs=1e-9)
    assert abs(told.rest) < (1e-4 if dtype == FULL else 2**-6) * largest
    assert told.notes == ()


def test_the_largest_parts_are_named_and_drawn_and_the_table_has_every_term(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dj.direct(engine, LINE, metric=METRIC, over="layer,neuron")
    table = told.columns()
    by_size = sorted(
        (abs(value) for layer, value in zip(table["layer"], table["value"], strict=True) if layer is not None),
        reverse=True,
    )
    assert [abs(value) for _, value in told.top(7)] == by_size[:7]
    name, value = next(part for part in told.top(10**6) if part[0].startswith("mlp_post.1["))
    assert told.neurons[1][int(name[len("mlp_post.1[") : -1])] == value
    view = attribution_view(told, top=3)
    assert all(name in view.plain and name in view.html for name, _ in told.top(3))
    assert told.top(4)[3][0] not in view.plain
    assert told.top()[9][0] in attribution_view(told).plain
    assert told.top()[9][0] in repr(told)
    assert "largest parts" not in attribution_view(dj.direct(engine, LINE, metric=METRIC)).plain
    told = dj.direct(engine, LINE, metric="logit(17)", over="layer, head")
    table = told.columns()
    assert np.array_equal(told.values, table["value"])
    assert list(zip(*table.values(), strict=True))[-1] == ("rest", None, None, told.rest)
    assert len(json.loads(json.dumps(table))["value"]) == len(told.contributions) + 3
    largest = max(map(abs, table["value"]))
    assert told.remainder == (
        f"The parts miss the logit by {abs(told.rest):.1e}, {abs(told.rest) / largest:.1e} of the largest part."
    )
    view = attribution_view(told)
    assert all(told.remainder in shown for shown in (repr(told), view.plain, view.html))
    assert dj.direct(engine, LINE, metric=METRIC).notes == ()
    of = Readout.of
    monkeypatch.setattr(Readout, "of", lambda self, value_D: of(self, value_D) * (1 + 1e-3))
    told = dj.direct(engine, LINE, metric=METRIC)
    assert "miss the logit by more than rounding" in told.notes[0]


def test_other_axes_metrics_and_tokens_are_refused_and_leave_no_session(engine: RemoteEngine) -> None:
    for metric in ["prob(17)", "logit(17) * 2", "logit(17) + logit(42)", "logit(True)", "logit(", ""]:
        with pytest.raises(UsageError, match="no sum of them"):
            dj.direct(engine, LINE, metric=metric)
    with pytest.raises(UsageError, match="goes over layer, and over head, neuron or both; not over layer, position"):
        dj.direct(engine, LINE, metric=METRIC, over=("layer", "position"))
    with pytest.raises(DjinnError):
        dj.direct(engine, LINE, metric="logit(100000)")
    assert engine.sessions() == ()


def test_a_model_that_narrows_the_residual_before_its_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As OPT of 350 million does."""
    narrow = {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False}
    monkeypatch.setitem(families._SPECIAL, "opt:narrow", lambda layers: narrow)
    with reached(build_desk(families.build("opt:narrow", layers=2))) as [engine]:
        with pytest.raises(UnknownSite, match="narrows the residual before its head"):
            dj.direct(engine, LINE, metric=METRIC)


@pytest.mark.parametrize(
    ("family", "over", "why"),
    [
        ("vaultgemma", "layer,head", "bends its logits after the head"),
        ("gemma3n_text", "layer,head", "several streams at once"),
        ("diffllama", "layer,head", "not divided into heads"),
        ("granite", "layer,head", r"explain no logit \(\d+\.\d+% of it is something else\)"),
        ("mixtral", "layer,neuron", "neurons of layer 0 add nothing of their own.*a mixture of experts"),
        ("gemma3_text", "layer,neuron", "neurons of layer 0 .* a norm stands between the MLP and the residual"),
    ],
)
def test_a_family_whose_parts_are_no_sum_is_refused_with_the_reason(family: str, over: str, why: str) -> None:
    with reached(desk_of(family)) as [engine]:
        with pytest.raises(UnknownSite, match=why):
            dj.direct(engine, LINE, metric=METRIC, over=over)
        assert engine.sessions() == ()


REPEATED = [9, 8, 7, 21, 9, 8, 7]


def test_heads_are_scored_over_random_tokens_or_prompts(engine: RemoteEngine) -> None:
    scores = engine.head_scores(length=10, samples=2, seed=3)
    assert scores.previous.shape == (3, 4)
    assert scores.counted == {"previous": 38, "duplicate": 20, "induction": 20}
    assert "3 layers x 4 heads: over 2 lines of 10 random tokens, repeated once, seed 3" in repr(scores)
    assert np.array_equal(scores.induction, engine.head_scores(length=10, samples=2, seed=3).induction)
    own = engine.head_scores([REPEATED])
    assert own.counted == {"previous": 6, "duplicate": 3, "induction": 3}
    layer, head, most = own.top(1, "duplicate")[0]
    assert most == own.duplicate[layer, head] == own.duplicate.max()
    assert own.columns()["duplicate"][layer * 4 + head] == most
    assert [one.name for one in engine.sessions()] == []
    with pytest.raises(UsageError, match="two or more tokens"):
        engine.head_scores(length=1)
    with pytest.raises(UsageError, match="larger vocabulary"):
        engine.head_scores(length=10**6)
    with pytest.raises(UsageError, match="no prompts"):
        engine.head_scores([])
    with pytest.raises(UsageError, match="'copying' is none of them"):
        engine.head_scores([REPEATED]).top(5, "copying")


def test_all_patterns_of_a_line_come_with_its_scores(engine: RemoteEngine) -> None:
    session = engine.session("mine")
    session.run(REPEATED, max_new_tokens=0)
    patterns = session.patterns()
    assert patterns.values.shape == (3, 4, 7, 7)
    assert np.allclose(patterns.values.sum(-1), 1)
    assert np.allclose(
        patterns.scores.previous, [[h[range(1, 7), range(6)].mean() for h in of] for of in patterns.values]
    )
    assert repr(patterns) == "Patterns of 3 layers x 4 heads over 7 tokens"
    session.close()
