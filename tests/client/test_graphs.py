"""Attribution graphs and circuits planted by hand: every method finds what was planted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.engine.model.loading.tokenizer import TokenText
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.graphs.api import AttributionGraph, influence, pruned, shares
from tests import transcoders
from tests.client import crafted
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.sweeps import test_planted_circuit as induction
from tests.threads import one_thread

LINE, METRIC = [1, 2, 3, 4], "logit(2) - logit(7)"
LAST = len(LINE) - 1


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    """A GPT-2 in which two relays lead from a token to its logit, one through each MLP, with transcoders of both, whose
    features are the tokens."""
    with one_thread(), reached(build_desk(relays())) as [engine]:
        layers = {}
        for layer, block in enumerate(relays().transformer.h):
            layers[layer] = {
                "W_enc": block.mlp.c_fc.weight.T.contiguous(),
                "b_enc": block.mlp.c_fc.bias.clone(),
                "W_dec": block.mlp.c_proj.weight.clone(),
                "b_dec": block.mlp.c_proj.bias.clone(),
            }
        engine.add_transcoders("tc", transcoders.set_saved(tmp_path_factory.mktemp("tc"), layers))
        yield engine
        engine.remove_module("tc")


@pytest.fixture(scope="module")
def graph(planted: RemoteEngine) -> AttributionGraph:
    return dj.attribution_graph(planted, LINE, METRIC)


def effect(graph: AttributionGraph, source: str, target: str) -> float:
    names = [one.name for one in graph.targets], [one.name for one in graph.sources]
    return float(graph.values[names[0].index(target), names[1].index(source)])


def test_planted_features_are_recovered(graph: AttributionGraph) -> None:
    features = [one for one in graph.nodes if one.kind == "feature"]
    best = sorted(features, key=lambda one: -one.influence)[:4]
    assert {one.site for one in best} <= {"tc.0[2]", "tc.1[2]"}
    assert graph.top(4, of="features") == [(one.site, one.position, one.text, one.influence) for one in best]
    assert len(graph.top(10**6, of="features")) == len(features)
    assert {f"tc.0[2] @{LAST}", f"tc.1[2] @{LAST}"} <= {one.name for one in features}
    read = {one: effect(graph, f"embed @{one}", f"tc.0[2] @{LAST}") for one in range(len(LINE))}
    assert max(read, key=lambda one: read[one]) == 1
    assert read[1] > 0
    for layer in (0, 1):
        assert effect(graph, f"tc.{layer}[2] @{LAST}", METRIC) > 0
    between = effect(graph, f"tc.0[2] @{LAST}", f"tc.1[2] @{LAST}")
    assert abs(between) < 0.05 * read[1]
    assert graph.difference < 1e-3
    assert graph.replacement > 0.9
    assert graph.completeness > 0.9
    assert repr(graph).startswith(f"attribution graph of {METRIC}: ")
    assert "replacement 0.9" in repr(graph)


def test_pruning_leaves_what_leads_to_the_outputs(graph: AttributionGraph) -> None:
    small, whole = graph.pruned(0.5, 0.5), graph.pruned(1.0, 1.0)
    assert 0 < len(small.edges) < len(whole.edges)
    assert small.nodes[-1].name == METRIC
    table = small.columns()
    assert set(table) == {"source", "target", "effect", "influence"}
    assert table["influence"] == sorted(table["influence"], reverse=True)
    assert graph.top(1)[0][:2] == (table["source"][0], table["target"][0])
    assert len(graph.columns()["effect"]) == int((graph.values != 0).sum())
    for share in (0.0, 1.5):
        with pytest.raises(UsageError, match="are kept by their share of the influence"):
            graph.pruned(share)
    with pytest.raises(UsageError, match=r"^nodes is a number, not 'half'\.$"):
        graph.pruned("half")


def test_influence_is_that_over_all_paths() -> None:
    effects = np.zeros((4, 4))  # 0 and 1 are sources, 2 reads both, 3 is the output
    effects[2, :2] = 3.0, -1.0
    effects[3, 0], effects[3, 2] = 1.0, 1.0
    weights = np.array([0.0, 0.0, 0.0, 1.0])
    assert np.allclose(influence(shares(effects), weights), [0.5 + 0.5 * 0.75, 0.5 * 0.25, 0.5, 0.0])
    always = np.array([True, True, False, True])
    kept = pruned(effects, weights, always, 0.6, 1.0)
    assert kept.nodes.tolist() == [True, True, True, True]
    assert kept.edges.sum() == 4
    alone = pruned(effects, weights, np.array([False, False, False, True]), 0.3, 1.0)
    assert alone.nodes.tolist() == [True, False, False, True]


def test_what_is_passed_on_in_a_ring_ends() -> None:
    ring = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert np.isfinite(influence(ring, np.array([0.0, 0.0, 1.0]))).all()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_file_with_effects_that_are_no_numbers_is_refused(
    graph: AttributionGraph, tmp_path: Path, number: float
) -> None:
    file = graph.save(tmp_path / "a.graph.djinn")
    head, body = crafted.parts(file)
    begin, end = head["edges"]["data_offsets"]
    spoilt = np.full((end - begin) // 4, number, dtype=np.float32).tobytes()
    crafted.put_told(file, head, body[:begin] + spoilt + body[end:], crafted.told(head))
    with pytest.raises(UsageError, match="its effects are not finite"):
        AttributionGraph.read(file)


GROUPS = {"tokens": ["embed @1", "embed @2"], "early": ["tc.0[2] @1", "tc.0[2] @3", "error.0 @3"], "late": ["tc.1[2]"]}


def grouped_graph(graph: AttributionGraph) -> AttributionGraph:
    for name, nodes in GROUPS.items():
        graph = graph.group(name, nodes)
    return graph


def test_the_effect_of_a_group_is_the_sum_of_its_members_edges(graph: AttributionGraph) -> None:
    grouped = grouped_graph(graph)
    late = [f"tc.1[2] @{one.position}" for one in graph.nodes if one.site == "tc.1[2]"]
    assert grouped.groups == {name: tuple(nodes) for name, nodes in GROUPS.items()} | {"late": tuple(late)}
    assert graph.groups == {}
    targets, sources = ([one.name for one in side] for side in (graph.targets, graph.sources))
    values = graph.values.astype(np.float64)

    def summed(into: list[str], out_of: list[str]) -> float:
        return float(values[np.ix_([targets.index(t) for t in into], [sources.index(s) for s in out_of])].sum())

    early = ["tc.0[2] @1", "tc.0[2] @3"]  # an error is no target
    assert grouped.effect("tokens", "early") == pytest.approx(summed(early, GROUPS["tokens"]), rel=1e-12)
    assert grouped.effect("tokens", METRIC) == pytest.approx(summed([METRIC], GROUPS["tokens"]), rel=1e-12)
    assert grouped.effect("early", "late") == pytest.approx(summed(late, GROUPS["early"]), rel=1e-12)
    assert grouped.effect("embed @0", "late") == pytest.approx(summed(late, ["embed @0"]), rel=1e-12)
    assert grouped.effect("late", "early") == 0.0
    table = grouped.pruned(1.0, 1.0).columns()
    edges = dict(zip(zip(table["source"], table["target"], strict=True), table["effect"], strict=True))
    assert edges["tokens", "early"] == pytest.approx(summed(early, GROUPS["tokens"]), rel=1e-12)
    assert edges["early", METRIC] == pytest.approx(summed([METRIC], GROUPS["early"]), rel=1e-12)
    members = {one for nodes in grouped.groups.values() for one in nodes}
    assert not members & {*table["source"], *table["target"]}
    assert not any(source == target for source, target in edges)


def test_groups_share_the_influence_of_their_members_edges(graph: AttributionGraph) -> None:
    grouped, pruned_alone = grouped_graph(graph).pruned(1.0, 1.0), graph.pruned(1.0, 1.0)
    of = {one: name for name, nodes in grouped_graph(graph).groups.items() for one in nodes}
    expected: dict[tuple[str, str], float] = {}
    for source, target, _, part in pruned_alone.edges:
        ends = (of.get(source.name, source.name), of.get(target.name, target.name))
        expected[ends] = expected.get(ends, 0.0) + part
    found = {(one.name, other.name): share for one, other, _, share in grouped.edges}
    assert {ends: value for ends, value in expected.items() if ends[0] != ends[1]}.keys() == found.keys()
    assert all(found[ends] == pytest.approx(expected[ends], rel=1e-9) for ends in found)
    assert grouped.top(2) == [(one.name, other.name, effect) for one, other, effect, _ in grouped.edges[:2]]
    tokens = next(one for one in grouped.nodes if one.name == "tokens")
    by_name = {one.name: one.influence for one in graph.nodes}
    assert (tokens.kind, tokens.site, tokens.position, tokens.layer) == ("group", "", -1, -1)
    assert tokens.influence == pytest.approx(by_name["embed @1"] + by_name["embed @2"])


def test_groups_and_names_come_back_from_the_file(
    planted: RemoteEngine, graph: AttributionGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    grouped = grouped_graph(graph)
    assert grouped.names == {}
    planted.name_features("tc.0", {2: "token $2$"})
    assert grouped.names == {"tc.0[2]": "token $2$"}
    path = grouped.save(tmp_path / "named.graph.djinn")
    assert grouped.recipe == graph.recipe
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "elsewhere"))
    kept = AttributionGraph.read(path)
    assert (kept.groups, kept.names) == (grouped.groups, {"tc.0[2]": "token $2$"})
    assert kept.pruned().edges == grouped.pruned().edges
    assert "tc.0[2] 'token $2$' @" in repr(AttributionGraph.read(path).group("early", []))
    assert dj.reproduce(planted, path).same
    assert grouped.again(planted.channel).groups == grouped.groups
    assert grouped.group("early", []).groups.keys() == {"tokens", "late"}


@pytest.mark.parametrize(
    ("name", "nodes", "sentence"),
    [
        ("", ["embed @1"], "A group has a name of 1 to 200 characters that no node has"),
        ("x" * 201, ["embed @1"], "A group has a name of 1 to 200 characters that no node has"),
        ("embed @0", ["embed @1"], "A group has a name of 1 to 200 characters that no node has"),
        ("new", ["embed @9"], "The graph has no node 'embed @9'; it has embed @"),
        ("new", ["tc.0[11]"], "The graph has no node"),
        ("new", ["embed @1"], "embed @1 is in the group 'tokens': end that first"),
        ("new", ["embed @0", METRIC], "Outputs are grouped with outputs alone"),
        ("new", "embed @0", "nodes is"),
        ("new", [5], "nodes is"),
    ],
)
def test_a_wrong_group_is_one_sentence(graph: AttributionGraph, name: str, nodes: Any, sentence: str) -> None:
    grouped = grouped_graph(graph)
    with pytest.raises(UsageError) as refused:
        grouped.group(name, nodes)
    assert sentence in str(refused.value)
    assert set(grouped.groups) == set(GROUPS)


def test_outputs_of_tokens_with_one_text_keep_their_own_effects(
    planted: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = dj.attribution_graph(planted, LINE, logits=3, probability=1.0)
    monkeypatch.setattr(TokenText, "text_of", lambda self, token: " a")
    alike = dj.attribution_graph(planted, LINE, logits=3, probability=1.0)
    assert len({*alike.reply.outputs}) == 3
    assert [one[2:] for one in alike.pruned(1.0, 1.0).edges] == [one[2:] for one in graph.pruned(1.0, 1.0).edges]


def test_it_comes_back_from_its_file_and_is_made_again(
    planted: RemoteEngine, graph: AttributionGraph, tmp_path: Path
) -> None:
    path = graph.save(tmp_path / "fact.graph.djinn")
    kept = AttributionGraph.read(path)
    assert np.array_equal(kept.values.view("int32"), graph.values.view("int32"))
    assert (kept.nodes, kept.difference, kept.recipe) == (graph.nodes, graph.difference, graph.recipe)
    assert dj.reproduce(planted, path).same
    other = {layer: transcoders.drawn(96, features=12, seed=layer) for layer in (0, 1)}
    planted.remove_module("tc")
    added = planted.add_transcoders("tc", transcoders.set_saved(tmp_path / "other", other))
    assert [one.site for one in added] == ["tc.0", "tc.1"]
    with pytest.raises(UsageError, match=r"tc\.0 here is of other files than it was"):
        dj.reproduce(planted, path)


def test_what_is_asked_wrongly_is_one_sentence(planted: RemoteEngine) -> None:
    with pytest.raises(UsageError, match="A graph has 1 to 8,192 features"):
        dj.attribution_graph(planted, LINE, METRIC, features=0)
    with pytest.raises(dj.DjinnError, match="has no gradient, because a rank moves"):
        dj.attribution_graph(planted, LINE, "rank(2)")


TOKENS, HEADS = 12, 8  # one-hot; as wide as a head
WIDTH: Final = HEADS * TOKENS
NOISE, GAIN, STEADY = 1e-4, 14.0, 20.0
TOKEN, A, B, C, D, UNREAD, CONSTANT = (slice(n * TOKENS, (n + 1) * TOKENS) for n in range(7))  # parts of the residual
RELAYED: Final = (
    ("embed", "v.0[0]"), ("z.0[0]", "mlp_in.0"), ("mlp_out.0", "v.1[1]"), ("z.1[1]", "logits"),
    ("embed", "v.0[3]"), ("z.0[3]", "v.1[2]"), ("z.1[2]", "mlp_in.1"), ("mlp_out.1", "logits"),
)  # fmt: skip
INDUCED: Final = (("embed", "v.0[1]"), ("z.0[1]", "k.1[2]"), ("z.1[2]", "logits"))
METHODS: Final = ({}, {"steps": 8}, {"method": "exact"})


def relays() -> Any:
    """A GPT-2 of two layers whose heads attend to all alike and whose parts of the residual are read by one block each:
    two relays lead from the tokens to the logits, each through two heads and an MLP. Head 0.5 writes what none reads,
    and head 1.6 reads what none has written by then. A part that is constant and large keeps norms
    from tying all to all."""
    config = GPT2Config(vocab_size=TOKENS, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_inner=TOKENS)
    torch.manual_seed(5)
    model: Any = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(NOISE)
    core = model.transformer
    core.wte.weight[:, TOKEN] += torch.eye(TOKENS)
    core.wpe.weight[:, CONSTANT] += STEADY * torch.tensor([1.0, -1.0] * (TOKENS // 2))
    for norm in (core.ln_f, *(norm for layer in core.h for norm in (layer.ln_1, layer.ln_2))):
        norm.weight.fill_(1.0)
    for layer, head, reads, writes in (
        (0, 0, TOKEN, A), (0, 3, TOKEN, C), (0, 5, TOKEN, UNREAD), (1, 1, B, TOKEN), (1, 2, C, D), (1, 6, D, TOKEN),
    ):  # fmt: skip
        attention, own = core.h[layer].attn, slice(head * TOKENS, (head + 1) * TOKENS)
        attention.c_attn.weight[reads, 2 * WIDTH + own.start : 2 * WIDTH + own.stop] += GAIN * torch.eye(TOKENS)
        attention.c_proj.weight[own, writes] += torch.eye(TOKENS)
    for layer, reads, writes in ((0, A, B), (1, D, TOKEN)):
        core.h[layer].mlp.c_fc.weight[reads] += GAIN * torch.eye(TOKENS)
        core.h[layer].mlp.c_proj.weight[:, writes] += torch.eye(TOKENS)
    return model


@pytest.fixture(scope="module")
def relayed() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(relays())) as [engine]:
        yield engine


@pytest.fixture(scope="module")
def induced() -> Iterator[RemoteEngine]:
    with one_thread(), reached(build_desk(induction._planted())) as [engine]:
        yield engine


RELAY: Final = {"clean": [1, 2, 3, 4], "corrupted": [1, 7, 3, 4], "metric": "logit(2) - logit(7)"}
INDUCTION: Final = {
    "clean": list(induction.LINE), "corrupted": list(induction.TWIN), "metric": f"logit({induction.SECOND}) - logit(0)",
}  # fmt: skip


@pytest.mark.parametrize("way", METHODS, ids=("eap", "eap-ig", "exact"))
def test_planted_circuits_are_found_by_each_method(
    relayed: RemoteEngine, induced: RemoteEngine, way: dict[str, Any]
) -> None:
    """The known edges have the largest scores, and do the task by themselves."""
    for engine, asked, known in ((relayed, RELAY, RELAYED), (induced, INDUCTION, INDUCED)):
        found = dj.edges(engine, **asked, **way)
        assert {(writer, reader) for writer, reader, _ in found.top(len(known))} == set(known)
        assert dj.auroc(found, known) == 1.0
        assert dj.circuit(engine, found, len(known)).faithfulness == pytest.approx(1.0, abs=0.05)
        assert dj.circuit(engine, found, faithfulness=0.95).edges == list(dj.circuit(engine, found, len(known)).edges)


def test_without_one_of_its_edges_a_relay_is_broken(relayed: RemoteEngine) -> None:
    found = dj.edges(relayed, **RELAY)
    for edge in RELAYED:
        rest = [one for one in RELAYED if one != edge]
        assert dj.circuit(relayed, found, rest).faithfulness < 0.85


def test_the_areas_tell_the_circuits_order_from_a_wrong_one(relayed: RemoteEngine) -> None:
    sizes = (0.0, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
    found = dj.edges(relayed, **RELAY)
    backwards = Edges([reversed_scores(one) for one in found.replies])
    good, bad = (dj.circuit_curve(relayed, one, sizes) for one in (found, backwards))
    assert good.cpr > 0.95
    assert good.cmd < 0.05
    assert bad.cpr < 0.6
    assert bad.cmd > 0.4


def reversed_scores(reply: Any) -> Any:
    """Return scores whose order is the other way round."""
    import msgspec
    import numpy as np

    from djinn_jupyter.api.arrays import from_numpy, to_numpy

    return msgspec.structs.replace(reply, scores=from_numpy(1 / (np.abs(to_numpy(reply.scores)) + 1e-9)))
