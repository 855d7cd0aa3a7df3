"""Attribution graphs through the client: planted features are found, pruned, kept in a file and made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.graphs.api import AttributionGraph, influence, pruned, shares
from tests import transcoders
from tests.client.reached import reached
from tests.client.test_planted_edges import relays
from tests.engine.desk import build_desk
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
    assert {f"tc.0[2] @{LAST}", f"tc.1[2] @{LAST}"} <= {one.name for one in features}
    read = {one: effect(graph, f"embed @{one}", f"tc.0[2] @{LAST}") for one in range(len(LINE))}
    assert max(read, key=lambda one: read[one]) == 1
    assert read[1] > 0
    for layer in (0, 1):
        assert effect(graph, f"tc.{layer}[2] @{LAST}", METRIC) > 0
    between = effect(graph, f"tc.0[2] @{LAST}", f"tc.1[2] @{LAST}")
    assert abs(between) < 0.05 * read[1]


def test_scores_are_of_a_model_that_is_replaced_but_for_little(graph: AttributionGraph) -> None:
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
