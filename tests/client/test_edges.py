"""`dj.edges` against a Llama written out with a residual for each reader, and by the sums that edges have to have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, UnknownSite, UsageError
from tests.client.reached import reached
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.gradients import plain_edges
from tests.families import build

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
METRIC = "logit(17) - logit(42)"


@pytest.mark.parametrize("steps", [1, 4])
def test_every_edge_is_that_of_a_model_whose_readers_read_copies(wide: RemoteEngine, model: Any, steps: int) -> None:
    with torch.enable_grad():
        expected, logits_V = plain_edges.scores(model, CLEAN, CORRUPTED, 17, 42, steps)
    found = dj.edges(wide, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC, steps=steps)
    table = found.columns()
    scores = dict(zip(zip(table["writer"], table["reader"], strict=True), table["score"], strict=True))
    assert scores.keys() == expected.keys()
    largest = max(map(abs, expected.values()))
    assert max(abs(scores[edge] - expected[edge]) for edge in expected) < 1e-5 * largest
    if steps == 1:
        assert found.corrupted == pytest.approx(float((logits_V[17] - logits_V[42]).detach()), abs=1e-5)
    assert len(found) == len(expected)
    assert wide.sessions() == ()


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "mixtral", "qwen3", "bloom"])
def test_edges_across_a_boundary_sum_to_the_score_of_the_residual_there(family: str) -> None:
    asked = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}
    with reached(build_desk(build(family, layers=3))) as [engine]:
        found = dj.edges(engine, **asked)
        whole = dj.attribute(engine, site="resid_pre", over=("layer",), **asked).values
    for layer in range(3):
        before = [at for at, name in enumerate(found.writers) if name == "embed" or layer_of(name) < layer]
        behind = [at for at, name in enumerate(found.readers) if name == "logits" or layer_of(name) >= layer]
        across = found.values[np.ix_(before, behind)]
        assert not np.isnan(across).any()
        assert across.sum() == pytest.approx(whole[layer], rel=1e-3, abs=1e-5)


def layer_of(name: str) -> int:
    return int(name.split(".")[1].split("[")[0])


def test_the_largest_are_named_first(wide: RemoteEngine) -> None:
    found = dj.edges(wide, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)
    sizes = [abs(score) for _, _, score in found.top(10**6)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(found)
    writer, reader, score = found.top(1)[0]
    assert found.values[found.writers.index(writer), found.readers.index(reader)] == score
    assert f"{writer} -> {reader}: {score:+.3f}" in repr(found)


def test_of_edges_that_all_score_0_those_are_named_that_there_are(wide: RemoteEngine) -> None:
    found = dj.edges(wide, clean=CORRUPTED, corrupted=CORRUPTED, metric=METRIC)
    table = found.columns()
    assert set(table["score"]) == {0.0}
    assert {edge[:2] for edge in found.top(10**6)} == set(zip(table["writer"], table["reader"], strict=True))


@pytest.mark.parametrize(
    ("family", "said"), [("gemma2", "a norm stands behind its blocks"), ("granite", "does not sum to its residual")]
)
def test_a_family_whose_edges_are_not_told_apart_says_why(family: str, said: str) -> None:
    with reached(desk_of(family)) as [engine]:
        with pytest.raises(UnknownSite, match=said):
            dj.edges(engine, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)
        assert engine.sessions() == ()


def test_what_has_no_edges_is_refused_in_one_sentence(wide: RemoteEngine) -> None:
    for fields, said in (
        ({"clean": CLEAN[:-1]}, "has 6 tokens and the corrupted one 7"),
        ({"steps": 0}, "from 1 to 1,000 steps, not 0"),
    ):
        with pytest.raises(UsageError, match=said):
            dj.edges(wide, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **fields})
    with pytest.raises(DjinnError, match="has no gradient"):
        dj.edges(wide, clean=CLEAN, corrupted=CORRUPTED, metric="rank(17)")
