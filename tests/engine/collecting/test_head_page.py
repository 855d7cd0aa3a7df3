"""The page of a head has the numbers of the plain model: its attention by pairs of tokens, and its OV circuit."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes.weight_reader import WeightReader
from djinn_jupyter.errors import IllegalMove, PromptTooLong, UnknownSite
from djinn_jupyter.methods.heads.engine import circuit, page
from djinn_jupyter.methods.heads.request import HeadRead, ReadHead
from tests.device import DEVICE
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.families import build

pytestmark = pytest.mark.drawn

LAYER, HEAD = 2, 1
LINES = ((*tokens(9), *tokens(4)), (5, 9, 5, 9, 9, 7), (3,))


def read(desk: Desk, **fields: Any) -> Any:
    desk.open("a")
    try:
        return desk.ask(ReadHead(session="a", **{"layer": LAYER, "head": HEAD, "lines": LINES, **fields}))
    finally:
        desk.close("a")


def weights_of(family: str, line: tuple[int, ...], head: int = HEAD) -> Tensor:
    """Return a head's own weights [queries, keys], of eager attention."""
    model = plain_of(family, attention="eager", layers=3)
    with torch.inference_mode():
        maps = model(torch.tensor([line], device=DEVICE), use_cache=False, output_attentions=True).attentions
    return maps[LAYER][0, head].double().cpu()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_pairs_of_tokens_have_the_weights_of_the_plain_model(family: str) -> None:
    reply = read(desk_of(family, layers=3), top=1000, examples=100)
    assert isinstance(reply, HeadRead), reply
    met: dict[tuple[int, int], list[float]] = defaultdict(list)
    first = []
    for line in LINES:
        weights = weights_of(family, line)
        for query in range(1, len(line)):
            first.append(float(weights[query, 0]))
            for key in range(1, query + 1):
                met[line[query], line[key]].append(float(weights[query, key]))
    assert (reply.queries, reply.first_share) == (len(first), pytest.approx(sum(first) / len(first), abs=1e-5))
    assert {(one.query, one.key): one.count for one in reply.summed} == {pair: len(all_) for pair, all_ in met.items()}
    for one in reply.summed:
        assert one.summed == pytest.approx(sum(met[one.query, one.key]), abs=1e-5)
    assert [one.summed for one in reply.summed] == sorted((one.summed for one in reply.summed), reverse=True)
    assert {(one.query, one.key) for one in reply.mean} == {pair for pair, all_ in met.items() if len(all_) > 1}
    means = [one.summed / one.count for one in reply.mean]
    assert means == sorted(means, reverse=True)
    strongest = {(LINES[one.line][one.query], LINES[one.line][one.key]): one.weight for one in reply.examples}
    assert strongest.keys() == met.keys()
    for pair, weight in strongest.items():
        assert weight == pytest.approx(max(met[pair]), abs=1e-5)


def test_an_example_has_its_querys_weights() -> None:
    reply = read(desk_of("llama", layers=3), examples=3)
    assert [one.weight for one in reply.examples] == sorted((one.weight for one in reply.examples), reverse=True)
    for one in reply.examples:
        row = weights_of("llama", LINES[one.line])[one.query]
        assert torch.allclose(torch.tensor(one.weights, dtype=torch.float64), row[: one.query + 1], atol=1e-5)
        assert (one.first, one.weights[one.key]) == (0, one.weight)
    spelled = dict(reply.spelled)
    assert all(token in spelled for one in reply.examples for token in LINES[one.line][: one.query + 1])


def test_of_a_long_line_the_last_positions_before_the_query_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "WINDOW", 3)
    reply = read(desk_of("llama", layers=3), lines=(tokens(9),), examples=100)
    for one in reply.examples:
        row = weights_of("llama", tokens(9))[one.query]
        assert one.first == max(0, one.query - 2)
        assert torch.allclose(torch.tensor(one.weights, dtype=torch.float64), row[one.first : one.query + 1], atol=1e-5)
    assert {token for token, _ in reply.spelled} >= {tokens(9)[one.key] for one in reply.examples}


def by_hand(family: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return W_E, the head's W_V W_O and W_U of the plain model, with the gains of the norms between them."""
    model = plain_of(family, layers=3)

    def of(tensor: Tensor) -> Tensor:
        return tensor.detach().double().cpu()

    if family in ("gpt2", "opt"):
        return _of_gpt2(model, of)
    config, layer = model.config, model.model.layers[LAYER]
    attention, width = layer.self_attn, layer.self_attn.head_dim
    group = HEAD // (config.num_attention_heads // config.num_key_value_heads)
    gemma = 1.0 if family.startswith("gemma") else 0.0
    values = of(attention.v_proj.weight)[group * width :][:width].T
    out = of(attention.o_proj.weight)[:, HEAD * width :][:, :width].T
    before = torch.ones(config.hidden_size).double() if family == "olmo2" else of(layer.input_layernorm.weight) + gemma
    behind = of(model.model.norm.weight) + gemma
    if family in ("gemma2", "olmo2"):
        behind = behind * (of(layer.post_attention_layernorm.weight) + gemma)
    embedding = of(model.get_input_embeddings()(torch.arange(config.vocab_size, device=DEVICE)))
    return embedding * _factor(config), before[:, None] * values @ out, behind[:, None] * of(model.lm_head.weight).T


def _factor(config: Any) -> float:
    return float(getattr(config, "embedding_multiplier", 1.0))


def _of_gpt2(model: Any, of: Any) -> tuple[Tensor, Tensor, Tensor]:
    block, width = model.transformer.h[LAYER], model.config.n_embd // model.config.n_head
    values = of(block.attn.c_attn.weight).chunk(3, 1)[2][:, HEAD * width :][:, :width]
    out = of(block.attn.c_proj.weight)[HEAD * width :][:width]
    inner = of(block.ln_1.weight)[:, None] * values
    inner = inner - inner.mean(0)
    last = of(model.transformer.ln_f.weight)[:, None] * of(model.lm_head.weight).T
    return of(model.transformer.wte.weight), inner @ out, last - last.mean(0)


@pytest.mark.parametrize("block", [1 << 24, 300])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "qwen3", "olmo2", "gemma", "granite"])
def test_the_ov_circuit_is_the_product_of_the_plain_models_matrices(
    family: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "BLOCK", block)
    found = read(desk_of(family, layers=3), lines=(), top=20).circuit
    embedding, value_out, unembedding = by_hand(family)
    whole = embedding @ value_out @ unembedding
    largest = whole.flatten().topk(20)
    size = float(largest.values[0])
    assert [one.value for one in found.pairs] == pytest.approx(largest.values.tolist(), abs=1e-4 * size)
    for one in found.pairs:
        assert one.value == pytest.approx(float(whole[one.given, one.made]), abs=1e-4 * size)
    eigenvalues = torch.linalg.eigvals(whole)
    assert found.copying == pytest.approx(float(eigenvalues.real.sum() / eigenvalues.abs().sum()), abs=1e-3)


def test_what_is_folded_in_and_left_out_is_told() -> None:
    notes = {family: read(desk_of(family, layers=3), lines=()).circuit.notes for family in ("llama", "olmo2", "bloom")}
    assert notes["llama"] == ("the gain of the norm before attention is folded in", "that of the final norm too")
    assert "no norm stands before the values" in notes["olmo2"]
    assert "and that of the norm behind attention" in notes["olmo2"]
    assert "what stands between the embedding and the first layer is left out" in notes["bloom"]
    scaled = read(desk_of("granite", layers=3), lines=()).circuit.notes
    assert "embeddings times 2, as the model scales them" in scaled
    assert "attn_out times 0.5 is what is added to the residual, and the factor is left out" in scaled


def test_what_has_no_such_weights_says_why_and_shows_the_rest() -> None:
    latent = read(desk_of("deepseek_v3", layers=3))
    assert (latent.circuit, latent.queries) == (None, sum(len(line) - 1 for line in LINES))
    assert "There is no W_V.2 here: the cache keeps a compressed form" in latent.unread
    assert latent.summed
    with pytest.raises(UnknownSite, match="this layer has no attention"):
        read(desk_of("mamba", layers=3))


def test_a_circuit_without_room_says_so_and_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = build_desk(build("llama", layers=3))
    monkeypatch.setattr(circuit.HeadCircuit, "nbytes", desk.engine.budget.limit + 1)
    reply = read(desk)
    assert (reply.circuit, reply.summed != ()) == (None, True)
    assert "memory" in reply.unread or "device" in reply.unread


def test_a_page_without_prompts_has_no_pairs() -> None:
    reply = read(desk_of("llama", layers=3), lines=())
    assert (reply.summed, reply.mean, reply.examples, reply.first_share) == ((), (), (), None)
    assert len(reply.circuit.pairs) == 10


def test_too_many_different_pairs_end_the_reading_with_those_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_KINDS", 20)
    reply = read(desk_of("llama", layers=3))
    assert reply.lines == LINES[:1]
    assert "The first 1 lines are read: they have more than 20 different pairs" in reply.notes[0]
    assert reply == read(desk_of("llama", layers=3))


def test_sums_that_wait_are_those_that_are_settled() -> None:
    at_once, later = page.PairSums(128), page.PairSums(128)
    codes, weights = torch.tensor([5, 7, 5, 300]), torch.tensor([0.5, 0.25, 0.125, 1.0], dtype=torch.float64)
    for _ in range(3):
        at_once.add(codes, weights)
        at_once.settle()
        later.add(codes, weights)
    later.settle()
    for name in ("codes", "counts", "sums"):
        assert torch.equal(getattr(at_once, name), getattr(later, name))
    assert at_once.counts.tolist() == [6, 3, 3]


def test_mistakes_are_told() -> None:
    desk = desk_of("llama", layers=3)
    with pytest.raises(UnknownSite, match=r"There is no head 2\.4: layer 2 has heads 0 to 3"):
        read(desk, head=4)
    with pytest.raises(UnknownSite, match=r"layer"):
        read(desk, layer=3)
    with pytest.raises(PromptTooLong):
        read(desk, lines=(tokens(4000),))
    desk.open("b")
    desk.run(LINES[0], 1, "b")
    with pytest.raises(IllegalMove, match="has a line of its own"):
        desk.ask(ReadHead(session="b", layer=LAYER, head=HEAD))
    desk.close_all()


def test_the_circuit_is_that_of_weight_by_name() -> None:
    """The matrices that `%djinn_weight` reads have the same product."""
    desk = build_desk(build("llama", layers=3))
    reader = WeightReader(desk.engine.forward)
    left, right, folds = reader.value_circuit(LAYER, HEAD)
    name = page.WeightName(name="W_OV", layer=LAYER, selector=(HEAD,))
    assert folds
    assert torch.allclose(left @ right, reader.read(name, None, None, fold_norm=True), atol=1e-6)
