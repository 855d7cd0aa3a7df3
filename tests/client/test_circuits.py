"""`dj.circuit` against a Llama whose readers sum what writers write, and by what circuits have to give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.api.edges import Edges
from tests.client.reached import reached
from tests.engine.desk import build_desk, tokens
from tests.engine.gradients import plain_circuits
from tests.families import build

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
METRIC = "logit(17) - logit(42)"
ASKED = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}


@pytest.fixture(scope="module")
def found(wide: RemoteEngine) -> Edges:
    return dj.edges(wide, **ASKED)


@pytest.mark.parametrize("count", [1, 5, 20, 60, 150])
def test_a_circuit_is_that_of_a_model_whose_readers_sum_their_writers(
    wide: RemoteEngine, model: Any, found: Edges, count: int
) -> None:
    circuit = dj.circuit(wide, found, count)
    with torch.no_grad():
        logits_V = plain_circuits.metric(model, CLEAN, CORRUPTED, set(circuit.edges))
    assert circuit.values[0] == pytest.approx(float(logits_V[17] - logits_V[42]), abs=2e-7)  # read in float32
    assert wide.sessions() == ()


def test_an_edge_is_a_circuit_of_all_others_the_other_way_round(wide: RemoteEngine, found: Edges) -> None:
    """Patching one edge into the corrupted line is a run of that line in which all other edges are its own."""
    exact = dj.edges(wide, **ASKED, method="exact")
    turned = dj.edges(wide, clean=CORRUPTED, corrupted=CLEAN, metric=METRIC)
    edges = list(zip(*(found.columns()[name] for name in ("writer", "reader")), strict=True))
    for edge in edges[:: len(edges) // 12]:
        circuit = dj.circuit(wide, turned, [one for one in edges if one != edge])
        change = exact.values[exact.writers.index(edge[0]), exact.readers.index(edge[1])]
        assert circuit.values[0] - exact.corrupted == pytest.approx(change, abs=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "mixtral", "qwen3", "bloom"])
def test_all_edges_give_the_clean_line_and_none_the_corrupted_one_bit_for_bit(family: str) -> None:
    with reached(build_desk(build(family, layers=2))) as [engine]:
        found = dj.edges(engine, **ASKED)
        whole, none = dj.circuit(engine, found, len(found)), dj.circuit(engine, found, 0)
        assert (whole.values == whole.clean).all()
        assert (none.values == none.corrupted).all()
        assert (whole.faithfulness, none.faithfulness) == (1.0, 0.0)


def test_the_largest_scores_are_patched_too(wide: RemoteEngine, found: Edges) -> None:
    exact = dj.edges(wide, **ASKED, method="exact")
    both = dj.edges(wide, **ASKED, top=6)
    assert both.exact is not None
    there = ~np.isnan(both.exact)
    assert there.sum() == 6
    assert (both.exact[there] == exact.values[there]).all()
    assert {(writer, reader) for writer, reader, _ in found.top(6)} == {
        (both.writers[row], both.readers[at]) for row, at in np.argwhere(there)
    }
    assert "exact" in both.columns()
    assert (exact.method, exact.corrupted, exact.clean) == ("exact", found.corrupted, found.clean)


def test_faithfulness_over_pairs_has_an_interval(wide: RemoteEngine) -> None:
    pairs = [(tokens(6, seed=n), (*tokens(6, seed=n)[:2], *tokens(6, seed=n + 50)[2:])) for n in range(5)]
    clean, corrupted = [list(one) for one, _ in pairs], [list(other) for _, other in pairs]
    scored = dj.edges(wide, clean=clean, corrupted=corrupted, metric=METRIC)
    circuit = dj.circuit(wide, scored, 60, seed=3)
    each = [dj.circuit(wide, dj.edges(wide, clean=a, corrupted=b, metric=METRIC), circuit.edges) for a, b in
            zip(clean, corrupted, strict=True)]  # fmt: skip
    assert circuit.values.tolist() == [one.values[0] for one in each]
    assert all(one.interval is None for one in each)
    made, way = circuit.values - circuit.corrupted, circuit.clean - circuit.corrupted
    assert circuit.faithfulness == pytest.approx(made.sum() / way.sum())
    assert circuit.interval is not None
    low, high = circuit.interval
    assert low <= circuit.faithfulness <= high
    assert dj.circuit(wide, scored, 60, seed=3).interval == circuit.interval
    assert len(circuit.columns()["writer"]) == 60
    assert f"faithfulness {circuit.faithfulness:.1%}" in repr(circuit)
    four = dj.circuit(wide, dj.edges(wide, clean=clean[:4], corrupted=corrupted[:4], metric=METRIC), 60)
    assert four.interval is None
    assert "4 pairs (no interval: it is drawn from 5 pairs or more)" in repr(four)


def test_a_threshold_and_a_faithfulness_choose_the_first_edges(wide: RemoteEngine, found: Edges) -> None:
    tenth = abs(found.top(10)[-1][2])
    assert len(dj.circuit(wide, found, threshold=tenth)) == 10
    positive = dj.circuit(wide, found, 10, absolute=False)
    assert positive.scores == sorted(positive.scores, reverse=True)
    assert min(positive.scores) > 0
    fewest = dj.circuit(wide, found, faithfulness=0.9)
    assert fewest.faithfulness >= 0.9
    assert dj.circuit(wide, found, len(fewest) - 1).faithfulness < 0.9


def test_the_areas_of_a_curve_are_those_of_its_trapezoids(wide: RemoteEngine, found: Edges) -> None:
    curve = dj.circuit_curve(wide, found, sizes=(0.0, 0.1, 0.5, 1.0))
    assert [len(one) for one in curve.circuits] == [0, round(0.1 * len(found)), round(0.5 * len(found)), len(found)]
    for at, one in enumerate(curve.circuits):
        assert one.faithfulness == dj.circuit(wide, found, len(one)).faithfulness == curve.faithfulness[at]
    assert curve.cpr == pytest.approx(np.trapezoid(curve.faithfulness, curve.sizes))
    assert curve.cmd == pytest.approx(np.trapezoid(np.abs(1 - np.array(curve.faithfulness)), curve.sizes))
    assert curve.columns()["edges"] == [len(one) for one in curve.circuits]
    assert repr(curve).startswith(f"CPR {curve.cpr:.3f}, CMD {curve.cmd:.3f}")


def test_auroc_counts_the_pairs_that_are_in_order(found: Edges) -> None:
    known = [(writer, reader) for writer, reader, _ in found.top(12)[::3]]
    numbers = list(found.numbers(known))
    inside = [abs(found.values[edge]) for edge in numbers]
    outside = [abs(found.values[tuple(edge)]) for edge in np.argwhere(~np.isnan(found.values)).tolist()
               if tuple(edge) not in numbers]  # fmt: skip
    expected = np.mean([(a > b) + (a == b) / 2 for a in inside for b in outside])
    assert dj.auroc(found, known) == pytest.approx(expected)


def test_a_circuit_computes_attention_as_its_edges_did(wide: RemoteEngine) -> None:
    session = wide.session("eager", attention="eager")
    session.run(list(CORRUPTED), max_new_tokens=1)
    line = (*CLEAN, CLEAN[-1])
    found = dj.edges(wide, clean=line, corrupted=session, metric=METRIC, top=2)
    circuit = dj.circuit(wide, found, 5)
    session.close()
    for reply in (*found.replies, *circuit.replies):
        assert reply.made is not None
        assert reply.made.attention == "eager"


def test_what_is_no_circuit_is_refused_in_one_sentence(wide: RemoteEngine, found: Edges) -> None:
    for asked, said in (
        ({}, "Tell a circuit once"),
        ({"edges": 3, "threshold": 0.1}, "Tell a circuit once"),
        ({"edges": len(found) + 1}, "has from 0 to"),
        ({"edges": [("mlp_out.2", "q.0[0]")]}, "no edge from mlp_out.2 to q.0"),
        ({"edges": [("z.9[0]", "logits")]}, "no edge from z.9"),
        ({"faithfulness": float("nan")}, "are finite numbers, such as 0.8"),
        ({"threshold": float("nan")}, "are finite numbers, such as 0.8"),
        ({"threshold": float("inf")}, "are finite numbers, such as 0.8"),
        ({"faithfulness": 1.5}, "have a faithfulness of 100.0%"),
        ({"edges": 3, "confidence": 1.0}, "between 0 and 1"),
    ):
        with pytest.raises(UsageError, match=said):
            dj.circuit(wide, found, **asked)
    for sizes in ((), (0.5, 0.1), (0.1, 1.2)):
        with pytest.raises(UsageError, match="rising shares"):
            dj.circuit_curve(wide, found, sizes=sizes)
    with pytest.raises(UsageError, match="neither none nor all"):
        dj.auroc(found, [])
    with pytest.raises(UsageError, match="from 1 on"):
        dj.edges(wide, **ASKED, top=0)
    with pytest.raises(UsageError, match="Steps are of gradients"):
        dj.edges(wide, **ASKED, method="exact", steps=2)
