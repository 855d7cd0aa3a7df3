"""Edges and circuits: scored, patched, pruned and kept, against loops of single passes and a Llama written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import DjinnError, UnknownSite, UsageError
from djinn_jupyter.methods.circuits.api import pruning
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.api.pruning import heard
from djinn_jupyter.methods.circuits.request import RunCircuits
from tests.client import tables
from tests.client.reached import reached
from tests.client.test_graphs import INDUCED, INDUCTION, RELAY, RELAYED, relays
from tests.engine.desk import build_desk, desk_of, tokens
from tests.engine.gradients import plain_circuits, plain_edges
from tests.engine.sweeps import test_planted_circuit as induction
from tests.families import build
from tests.threads import one_thread

pytestmark = pytest.mark.drawn

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
METRIC = "logit(17) - logit(42)"
ASKED = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of fewer layers than that of the other modules: a loop of single passes takes seconds."""
    return build("llama", layers=2).double()


@pytest.fixture(scope="module")
def found(wide: RemoteEngine) -> Edges:
    return dj.edges(wide, **ASKED)


@pytest.fixture(scope="module")
def exact(wide: RemoteEngine) -> Edges:
    return dj.edges(wide, **ASKED, method="exact")


def test_a_circuit_is_that_of_a_model_whose_readers_sum_their_writers(
    wide: RemoteEngine, model: Any, found: Edges
) -> None:
    for count in (1, 20, 60):
        circuit = dj.circuit(wide, found, count)
        with torch.no_grad():
            logits_V = plain_circuits.metric(model, CLEAN, CORRUPTED, set(circuit.edges))
        assert circuit.values[0] == pytest.approx(float(logits_V[17] - logits_V[42]), abs=2e-7)  # read in float32
    assert wide.sessions() == ()


def test_an_edge_is_a_circuit_of_all_others_the_other_way_round(wide: RemoteEngine, found: Edges, exact: Edges) -> None:
    """Patching one edge into the corrupted line is a run of that line in which all other edges are its own."""
    turned = dj.edges(wide, clean=CORRUPTED, corrupted=CLEAN, metric=METRIC)
    edges = list(zip(*(found.columns()[name] for name in ("writer", "reader")), strict=True))
    for edge in edges[:: len(edges) // 6]:
        circuit = dj.circuit(wide, turned, [one for one in edges if one != edge])
        change = exact.values[exact.writers.index(edge[0]), exact.readers.index(edge[1])]
        assert circuit.values[0] - exact.corrupted == pytest.approx(change, abs=1e-9)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "mixtral"])
def test_all_edges_give_the_clean_line_and_none_the_corrupted_one_bit_for_bit(family: str) -> None:
    with reached(build_desk(build(family, layers=2))) as [engine]:
        found = dj.edges(engine, **ASKED)
        whole, none = dj.circuit(engine, found, len(found)), dj.circuit(engine, found, 0)
        assert (whole.values == whole.clean).all()
        assert (none.values == none.corrupted).all()
        assert (whole.faithfulness, none.faithfulness) == (1.0, 0.0)


def test_the_largest_scores_are_patched_too(wide: RemoteEngine, found: Edges, exact: Edges) -> None:
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
    circuit = dj.circuit(wide, scored, 30, seed=3)
    each = [dj.circuit(wide, dj.edges(wide, clean=a, corrupted=b, metric=METRIC), circuit.edges) for a, b in
            zip(clean, corrupted, strict=True)]  # fmt: skip
    assert circuit.values.tolist() == [one.values[0] for one in each]
    assert all(one.interval is None for one in each)
    made, way = circuit.values - circuit.corrupted, circuit.clean - circuit.corrupted
    assert circuit.faithfulness == pytest.approx(made.sum() / way.sum())
    assert circuit.interval is not None
    low, high = circuit.interval
    assert low <= circuit.faithfulness <= high
    assert dj.circuit(wide, scored, 30, seed=3).interval == circuit.interval
    assert len(circuit.columns()["writer"]) == 30
    assert f"faithfulness {circuit.faithfulness:.1%}" in repr(circuit)
    four = dj.circuit(wide, dj.edges(wide, clean=clean[:4], corrupted=corrupted[:4], metric=METRIC), 30)
    assert four.interval is None
    assert "4 pairs (no interval: it is drawn from 5 pairs or more)" in repr(four)


def test_the_first_edges_are_chosen_and_their_curve_has_its_areas(wide: RemoteEngine, found: Edges) -> None:
    tenth = abs(found.top(10)[-1][2])
    assert len(dj.circuit(wide, found, threshold=tenth)) == 10
    positive = dj.circuit(wide, found, 10, absolute=False)
    assert positive.scores == sorted(positive.scores, reverse=True)
    assert min(positive.scores) > 0
    fewest = dj.circuit(wide, found, faithfulness=0.9)
    assert fewest.faithfulness >= 0.9
    assert dj.circuit(wide, found, len(fewest) - 1).faithfulness < 0.9
    curve = dj.circuit_curve(wide, found, sizes=(0.0, 0.1, 0.5, 1.0))
    assert [len(one) for one in curve.circuits] == [0, round(0.1 * len(found)), round(0.5 * len(found)), len(found)]
    for at, one in enumerate(curve.circuits):
        assert one.faithfulness == dj.circuit(wide, found, len(one)).faithfulness == curve.faithfulness[at]
    assert curve.cpr == pytest.approx(np.trapezoid(curve.faithfulness, curve.sizes))
    assert curve.cmd == pytest.approx(np.trapezoid(np.abs(1 - np.array(curve.faithfulness)), curve.sizes))
    assert curve.columns()["edges"] == [len(one) for one in curve.circuits]
    assert repr(curve).startswith(f"CPR {curve.cpr:.3f}, CMD {curve.cmd:.3f}")
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
        assert reply.made.attention == "eager"


def test_what_is_no_circuit_or_cannot_be_scored_or_pruned_is_refused_in_one_sentence(
    wide: RemoteEngine, found: Edges
) -> None:
    for asked, said in (
        ({}, "Tell a circuit once"),
        ({"edges": 3, "threshold": 0.1}, "Tell a circuit once"),
        ({"edges": len(found) + 1}, "has from 0 to"),
        ({"edges": [("mlp_out.1", "q.0[0]")]}, "no edge from mlp_out.1 to q.0"),
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
    for fields, said in (
        ({"clean": CLEAN[:-1]}, "has 6 tokens and the corrupted one 7"),
        ({"steps": 0}, "from 1 to 1,000 steps, not 0"),
    ):
        with pytest.raises(UsageError, match=said):
            dj.edges(wide, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **fields})
    with pytest.raises(DjinnError, match="has no gradient"):
        dj.edges(wide, clean=CLEAN, corrupted=CORRUPTED, metric="rank(17)")
    for threshold in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="larger than 0"):
            dj.acdc(wide, found, threshold)
    with pytest.raises(UsageError, match="has from 0 to"):
        dj.acdc(wide, found, 0.1, first=len(found) + 1)
    bare = Edges([msgspec.structs.replace(one, made=None) for one in found.replies])
    with pytest.raises(UsageError, match="score them anew"):
        dj.acdc(wide, bare, 0.1)


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


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen3"])
def test_edges_across_a_boundary_sum_to_the_score_of_the_residual_there(family: str) -> None:
    asked = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}
    with reached(build_desk(build(family, layers=2))) as [engine]:
        found = dj.edges(engine, **asked)
        whole = dj.attribute(engine, site="resid_pre", over=("layer",), **asked).values
    for layer in range(2):
        before = [at for at, name in enumerate(found.writers) if name == "embed" or layer_of(name) < layer]
        behind = [at for at, name in enumerate(found.readers) if name == "logits" or layer_of(name) >= layer]
        across = found.values[np.ix_(before, behind)]
        assert not np.isnan(across).any()
        assert across.sum() == pytest.approx(whole[layer], rel=1e-3, abs=1e-5)


def layer_of(name: str) -> int:
    return int(name.split(".")[1].split("[")[0])


def test_the_largest_are_named_first_or_those_that_there_are(wide: RemoteEngine) -> None:
    found = dj.edges(wide, clean=CLEAN, corrupted=CORRUPTED, metric=METRIC)
    sizes = [abs(score) for _, _, score in found.top(10**6)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(found)
    writer, reader, score = found.top(1)[0]
    assert found.values[found.writers.index(writer), found.readers.index(reader)] == score
    assert f"{writer} -> {reader}: {score:+.3f}" in repr(found)
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


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_an_edge_patched_is_a_path_of_one_step(family: str) -> None:
    """A path freezes what lies between, so its sender's change reaches the receiver alone, as an edge does."""
    with reached(build_desk(build(family, layers=2).double())) as [engine]:
        found = dj.edges(engine, **ASKED, method="exact")
        turned = {"clean": CORRUPTED, "corrupted": CLEAN, "metric": METRIC, "mode": "exact"}
        for reader in ("q.1[1]", "k.1[0]", "v.1[1]", "mlp_in.1", "logits", "v.0[0]"):
            for sender, name in (("z.0[1]", "z.0[1]"), ("mlp_out.0", "mlp_out.0"), ("resid_pre.0", "embed")):
                at = found.writers.index(name), found.readers.index(reader)
                if np.isnan(found.values[at]):
                    continue
                path = dj.path(engine, f"{sender} -> {reader}", **turned)
                assert found.values[at] == pytest.approx(float(path.values) - path.clean, abs=1e-9)


@pytest.fixture(params=("gradients", "steps", "exact", "pairs"))
def scored(wide: RemoteEngine, request: pytest.FixtureRequest) -> Edges:
    asked: dict[str, dict[str, Any]] = {
        "gradients": {"top": 3},
        "steps": {"steps": 3},
        "exact": {"method": "exact"},
        "pairs": {"clean": [list(CLEAN), [1, 2]], "corrupted": [list(CORRUPTED), [1, 3]]},
    }
    return dj.edges(wide, **{"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC, **asked[request.param]})


def test_edges_and_their_circuit_come_back_and_are_computed_again_with_the_same_bits(
    wide: RemoteEngine, scored: Edges, tmp_path: Path
) -> None:
    again = tables.made_again(wide, scored, tmp_path).again
    for one, other in ((again.by_pair, scored.by_pair), (again.exact, scored.exact)):
        assert (one is None and other is None) or np.array_equal(one.view("int64"), other.view("int64"))
    assert (again.paired, again.method, again.tokens) == (scored.paired, scored.method, scored.tokens)
    circuit = dj.circuit_curve(wide, scored, sizes=(0.1, 0.3)).circuits[1]
    again = tables.made_again(wide, circuit, tmp_path).again
    assert (again.edges, again.scores, again.interval) == (circuit.edges, circuit.scores, circuit.interval)


def by_single_passes(model: Any, found: Edges, threshold: float) -> tuple[set[tuple[str, str]], float]:
    """Prune by a loop that drops one edge at a time on the plain model. Return the edges that are left, and how near to
    the threshold any change came."""
    columns = found.columns()
    kept = set(zip(columns["writer"], columns["reader"], strict=True))

    def metric(circuit: set[tuple[str, str]]) -> float:
        with torch.no_grad():
            logits_V = plain_circuits.metric(model, CLEAN, CORRUPTED, circuit)
        return float(logits_V[17] - logits_V[42])

    present, margin = metric(kept), threshold
    for reader in reversed(found.readers):
        for writer in reversed(found.writers):
            if (writer, reader) in kept:
                without = metric(kept - {(writer, reader)})
                margin = min(margin, abs(abs(without - present) - threshold))
                if abs(without - present) < threshold:
                    kept, present = kept - {(writer, reader)}, without
    return kept, margin


def test_the_edges_left_are_those_of_a_loop_of_single_passes(
    wide: RemoteEngine, model: Any, found: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = 0.02 * abs(found.clean - found.corrupted)
    expected, margin = by_single_passes(model, found, threshold)
    assert margin > 1e-6  # the engine reads the metric in float32
    circuit = dj.acdc(wide, found, threshold)
    assert set(circuit.edges) == expected
    assert 0 < len(circuit) < len(found)
    assert circuit.values[0] == dj.circuit(wide, found, circuit.edges).values[0]
    assert circuit.how == f"ACDC, threshold {threshold:g}"
    assert wide.sessions() == ()
    monkeypatch.setattr(pruning, "FEW", 1)
    monkeypatch.setattr(pruning, "AHEAD", 1)
    assert dj.acdc(wide, found, threshold).edges == circuit.edges, "what is asked ahead changes nothing"


def test_planted_circuits_are_what_is_left() -> None:
    for planted, asked, known in ((relays(), RELAY, RELAYED), (induction._planted(), INDUCTION, INDUCED)):
        with one_thread(), reached(build_desk(planted)) as [engine]:
            scored = dj.edges(engine, **asked)
            circuit = dj.acdc(engine, scored, 0.05 * (scored.clean - scored.corrupted))
            assert set(circuit.edges) == set(known)
            assert circuit.faithfulness == pytest.approx(1.0, abs=0.05)


def test_edges_that_lead_nowhere_take_no_pass(
    wide: RemoteEngine, found: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a threshold that none reaches all edges go; only those into the logits take a pass."""
    asked = sent(wide, monkeypatch)
    circuit = dj.acdc(wide, found, 1e9)
    assert circuit.edges == []
    tried = {edge for one in asked for edge in set(one[0]) - set(one[-1])}
    assert {found.readers[reader] for _, reader in tried} == {"logits"}


def sent(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the list into which the circuits of each later request go."""
    found, before = [], type(engine.channel).ask

    def noted(self: Any, request: Any, *more: Any, **named: Any) -> Any:
        if isinstance(request, RunCircuits):
            found.append(request.circuits)
        return before(self, request, *more, **named)

    monkeypatch.setattr(type(engine.channel), "ask", noted)
    return found


def test_pairs_are_pruned_by_their_mean_metric(wide: RemoteEngine) -> None:
    pairs = [(list(tokens(5, seed=n)), [*tokens(5, seed=n)[:2], *tokens(5, seed=n + 9)[2:]]) for n in range(2)]
    clean, corrupted = [one for one, _ in pairs], [other for _, other in pairs]
    scored = dj.edges(wide, clean=clean, corrupted=corrupted, metric=ASKED["metric"])
    said: list[tuple[int, int, int]] = []
    circuit = dj.acdc(wide, scored, 0.01, first=12, on_progress=lambda *so_far: said.append(so_far))
    columns = {(writer, reader) for writer, reader, _ in scored.top(12)}
    assert set(circuit.edges) < columns
    assert circuit.interval is None
    present = dj.circuit(wide, scored, list(columns)).values.mean()
    for edge in sorted(columns, key=lambda edge: (scored.readers.index(edge[1]), scored.writers.index(edge[0])))[::-1]:
        without = dj.circuit(wide, scored, list(columns - {edge})).values.mean()
        if abs(without - present) < 0.01:
            columns, present = columns - {edge}, without
    assert set(circuit.edges) == columns
    assert said[0] == (0, 12, 12)
    assert [done for done, _, _ in said] == sorted({done for done, _, _ in said})


def test_queries_are_heard_by_their_head_and_keys_by_all_that_share_them() -> None:
    writers = ("embed", *(f"z.0[{head}]" for head in range(4)), "mlp_out.0")
    readers = ("q.0[3]", "k.0[0]", "k.0[1]", "v.0[0]", "v.0[1]", "mlp_in.0", "logits")
    assert heard(writers, readers) == [
        frozenset({4}), frozenset({1, 2}), frozenset({3, 4}), frozenset({1, 2}), frozenset({3, 4}), frozenset({5}),
        None,
    ]  # fmt: skip


def test_a_circuit_comes_back_with_how_it_was_found(wide: RemoteEngine, found: Edges, tmp_path: Any) -> None:
    circuit = dj.acdc(wide, found, 0.5, first=20)
    kept = dj.Circuit.read(circuit.save(tmp_path / "small.circuit.djinn"))
    assert kept.how == circuit.how == "ACDC, threshold 0.5, of the first 20"
    assert kept.metric == ASKED["metric"]
    assert dj.reproduce(wide, kept).same


def test_an_interrupt_ends_it_and_leaves_no_session(wide: RemoteEngine, found: Edges) -> None:
    def interrupt(done: int, edges: int, kept: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(dj.WorkInterrupted, match="The pruning of a circuit was interrupted"):
        dj.acdc(wide, found, 1e-9, first=30, on_progress=interrupt)
    assert wide.sessions() == ()
