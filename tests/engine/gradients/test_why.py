"""The parts of an attention score are those of plain modules, and sum to the plain model's own score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.errors import IllegalMove, UnknownSite, UsageError
from djinn_jupyter.methods.why.api import part_name
from djinn_jupyter.methods.why.engine import handlers
from djinn_jupyter.methods.why.request import ExplainScore, ScoreExplained
from djinn_jupyter.modules.engine.arithmetic import Dictionary
from djinn_jupyter.wire.readings import ScoreSide
from tests import saes
from tests.device import DEVICE
from tests.engine.added.adding import add
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.gradients.plain_scores import PlainScore, plain_score, plain_score_of_gpt2
from tests.engine.plain import plain_of
from tests.families import build

pytestmark = pytest.mark.drawn

LINE, LAYER, HEAD = tokens(9), 2, 1
PAIRS = ((8, 3), (5, 5), (7, 0))
FAMILIES = ("gpt2", "llama", "qwen3", "gemma2")


def explained(desk: Desk, query: int = 8, key: int = 3, **fields: Any) -> Any:
    desk.open("a")
    given = {"line": LINE, "layer": LAYER, "head": HEAD, **fields}
    try:
        return desk.ask(ExplainScore(session="a", query=query, key=key, **given))
    finally:
        desk.close("a")


def named(side: ScoreSide) -> dict[str, float]:
    return {part_name(one.point, one.layer, one.unit): one.value for one in side.parts}


def by_hand(family: str) -> PlainScore:
    plain = plain_score_of_gpt2 if family == "gpt2" else plain_score
    return plain(plain_of(family, layers=3), LINE, LAYER)


def softmax_input(family: str, query: int, key: int) -> Tensor:
    """Return the logarithms of the plain model's own weights of the query: its scores but for a constant."""
    model = plain_of(family, attention="eager", layers=3)
    with torch.inference_mode():
        maps = model(torch.tensor([LINE], device=DEVICE), use_cache=False, output_attentions=True).attentions
    return maps[LAYER][0, HEAD, query, : query + 1].double().log().cpu()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_those_of_plain_modules_and_sum_to_the_score(family: str, pair: tuple[int, int]) -> None:
    reply, plain = explained(desk_of(family, layers=3), *pair), by_hand(family)
    assert isinstance(reply, ScoreExplained), reply
    assert reply.scale == pytest.approx(plain.scale, rel=1e-5)
    for side, expected in ((reply.by_key, plain.by_key(HEAD, *pair)), (reply.by_query, plain.by_query(HEAD, *pair))):
        largest = max(map(abs, expected.values()))
        found = named(side)
        biases = {name: found.pop(name) for name in list(found) if name.startswith("bias") and name not in expected}
        assert not any(biases.values())
        assert found.keys() == expected.keys() - {"constant"}
        assert side.constant == pytest.approx(expected["constant"], abs=1e-5 * largest)
        for name, value in found.items():
            assert value == pytest.approx(expected[name], abs=1e-5 * largest), name
        assert reply.score == pytest.approx(sum(expected.values()), abs=1e-5 * largest)
        assert sum(found.values()) + side.constant + side.rest == pytest.approx(reply.score, abs=1e-9)
        assert abs(side.rest) < 1e-5 * largest


@pytest.mark.parametrize("family", [*FAMILIES, "falcon:alibi", "bloom", "gpt_neox", "olmo2"])
def test_what_the_softmax_gets_is_the_models_own(family: str) -> None:
    desk, (query, key) = desk_of(family, attention="eager", layers=3), (8, 3)
    replies = [explained(desk, query, at) for at in (key, 6)]
    logs = softmax_input(family, query, key)
    assert replies[0].given - replies[1].given == pytest.approx(float(logs[key] - logs[6]), abs=1e-4)
    assert replies[0].weight == pytest.approx(float(logs[key].exp()), abs=1e-5)
    if family == "gemma2":
        cap = plain_of(family, layers=3).config.attn_logit_softcapping
        assert replies[0].given == pytest.approx(float(cap * torch.tensor(replies[0].score / cap).tanh()), abs=1e-4)
    if not any("bias of" in note or "softmax gets" in note for note in replies[0].notes):
        assert replies[0].given == pytest.approx(replies[0].score, abs=1e-4)
    else:
        assert family in ("gemma2", "falcon:alibi", "bloom")


def test_a_soft_cap_and_a_bias_of_distance_are_told() -> None:
    gemma, bloom = (explained(desk_of(family, layers=3)) for family in ("gemma2", "bloom"))
    assert "as by a soft-cap" in gemma.notes[0]
    assert f"A bias of {bloom.given - bloom.score:+.4f}" in bloom.notes[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_parts_miss_the_score_by_rounding(dtype: torch.dtype) -> None:
    reply = explained(desk_of("llama", dtype, layers=3))
    assert isinstance(reply, ScoreExplained), reply
    largest = max(abs(one.value) for one in reply.by_key.parts)
    assert max(abs(reply.by_key.rest), abs(reply.by_query.rest)) < 2**-5 * largest


def test_features_of_an_sae_replace_what_was_added_before(tmp_path: Path) -> None:
    desk = build_desk(build("llama", layers=3))
    tensors = saes.drawn(desk.engine.anatomy.hidden_size)
    add(desk, saes.saved(tmp_path, tensors), "resid_post.0")
    plain, whole = by_hand("llama"), explained(desk)
    reply = explained(desk, features="sae.0")
    x = sum(one for name, one in plain.parts.items() if ".1" not in name)
    features = saes.encode(x.float(), tensors)  # type: ignore[union-attr]
    found = named(reply.by_key)
    active = features[3].nonzero()[:, 0].tolist()
    assert {name for name in found if name.startswith("sae.0[")} == {f"sae.0[{unit}]" for unit in active}
    for unit in active:
        alone = torch.zeros_like(x)  # type: ignore[arg-type]
        alone[3] = (features[3, unit] * tensors["W_dec"][unit]).double()
        only = PlainScore({**plain.parts, "feature": alone}, plain.queries, plain.keys, plain.constants, plain.scale)
        fixed = plain.queries(sum(plain.parts.values()))[8, HEAD]  # type: ignore[arg-type]
        expected = float(fixed @ only.keys(alone)[3, HEAD]) * plain.scale
        assert found[f"sae.0[{unit}]"] == pytest.approx(expected, abs=1e-4)
    assert found["z.1[0]"] == pytest.approx(named(whole.by_key)["z.1[0]"], abs=1e-6)
    assert not {"z.0[0]", "embed"} & found.keys()
    assert sum(found.values()) + reply.by_key.constant + reply.by_key.rest == pytest.approx(whole.score, abs=1e-6)
    assert abs(reply.by_key.rest) < 1e-4
    with pytest.raises(UnknownSite, match=r"SAE of the residual stream up to resid_pre.0"):
        explained(desk, features="sae.0", layer=0)
    with pytest.raises(UnknownSite, match=r"sae\.0\[3\] is none"):
        explained(desk, features="sae.0[3]")
    desk.close_all()


def test_many_active_features_take_few_numbers_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, tensors, rows = build_desk(build("llama", layers=3)), saes.drawn(32), list[int]()
    tensors["b_enc"] += 100  # all are active
    add(desk, saes.saved(tmp_path, tensors), at="resid_post.0")
    whole, difference = explained(desk, features="sae.0"), Dictionary.difference

    def counting(self: Dictionary, x_TD: Tensor, before_TF: Tensor, after_TF: Tensor) -> Tensor:
        rows.append(len(after_TF))
        return difference(self, x_TD, before_TF, after_TF)

    features = len(tensors["b_enc"])
    monkeypatch.setattr(handlers, "ALONE", 5 * features)
    monkeypatch.setattr(Dictionary, "difference", counting)
    assert explained(desk, features="sae.0") == whole
    assert (max(rows), sum(rows)) == (5, 2 * features)


def test_rules_before_the_layer_are_the_rest_and_those_within_it_are_refused() -> None:
    desk = desk_of("llama", layers=3)
    desk.open("b")
    desk.steer("resid_post.0", name="b")
    reply = explained(desk, rules_of="b")
    assert isinstance(reply, ScoreExplained), reply
    assert abs(reply.by_key.rest) > 1e-3
    assert reply.score != explained(desk).score
    desk.open("c")
    desk.steer(f"q.{LAYER}", name="c")
    with pytest.raises(UnknownSite, match="makes another score by itself"):
        explained(desk, rules_of="c")
    desk.close_all()


def test_mistakes_are_told_in_a_sentence() -> None:
    desk = desk_of("llama", layers=3)
    for fields, error, words in (
        ({"query": 3, "key": 5}, UsageError, "Position 3 does not see position 5 in layer 2"),
        ({"key": 9}, UsageError, "The key 9 is beyond the line, which has positions 0 to 8"),
        ({"query": -10}, UsageError, "The query -10 is beyond the line"),
        ({"layer": 3}, UnknownSite, "layer"),
        ({"head": 4}, UnknownSite, "There is no head 2.4: layer 2 has heads 0 to 3"),
        ({"features": "resid_post.1"}, UnknownSite, "resid_post.1 is none"),
        ({"line": ()}, UsageError, "line"),
    ):
        with pytest.raises(error, match=words):
            explained(desk, **fields)  # type: ignore[arg-type]
    desk.open("b")
    desk.run(LINE, 1, "b")
    with pytest.raises(IllegalMove, match="has a line of its own"):
        desk.ask(ExplainScore(session="b", line=LINE, layer=LAYER, head=HEAD, query=8, key=3))
    desk.close_all()


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mamba2", "recurrent states"),
        ("deepseek_v3", "There is no k_rot.2 here"),
        ("diffllama", "no single call compares"),
        ("granite", "they explain no score"),
        ("cohere", "with the scales of its norms held it is not linear"),
    ],
)
def test_families_without_such_a_sum_are_refused_with_the_reason(family: str, why: str) -> None:
    with pytest.raises(UnknownSite, match=why):
        explained(desk_of(family, layers=4 if family == "granite" else 3))


def test_a_sliding_window_hides_what_is_beyond_it() -> None:
    desk = build_desk(build("mistral", layers=3))
    line = tokens(12)
    assert isinstance(explained(desk, 11, 6, line=line), ScoreExplained)
    with pytest.raises(UsageError, match="Position 11 does not see position 2"):
        explained(desk, 11, 2, line=line)


def test_the_session_is_as_before_and_its_own_line_is_read() -> None:
    desk = desk_of("llama", layers=3)
    desk.open("b")
    desk.run(LINE, 1, "b")
    before = list(desk.session("b").tokens)
    reply = explained(desk, line="b", rules_of="b", query=-1)
    assert (reply.tokens, reply.query) == (LINE, len(LINE) - 1)
    assert (desk.session("b").tokens, desk.describe("b").state) == (before, "idle")
    desk.close_all()
