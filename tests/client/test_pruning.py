"""`dj.acdc` against a loop of single passes on a plain Llama, and on toy models whose circuit is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.circuits.api import pruning
from djinn_jupyter.methods.circuits.api.edges import Edges
from djinn_jupyter.methods.circuits.api.pruning import heard
from djinn_jupyter.methods.circuits.request import RunCircuits
from tests.client.reached import reached
from tests.client.test_planted_edges import INDUCED, INDUCTION, RELAY, RELAYED, relays
from tests.engine.desk import build_desk, tokens
from tests.engine.gradients import plain_circuits
from tests.engine.sweeps import test_planted_circuit as induction
from tests.threads import one_thread

CORRUPTED = tokens(7)
CLEAN = (*CORRUPTED[:3], *tokens(7, seed=2)[3:])
ASKED: dict[str, Any] = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": "logit(17) - logit(42)"}


@pytest.fixture(scope="module")
def found(wide: RemoteEngine) -> Edges:
    return dj.edges(wide, **ASKED)


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


@pytest.mark.parametrize("share", [0.002, 0.02, 0.1])
def test_the_edges_left_are_those_of_a_loop_of_single_passes(
    wide: RemoteEngine, model: Any, found: Edges, share: float
) -> None:
    threshold = share * abs(found.clean - found.corrupted)
    expected, margin = by_single_passes(model, found, threshold)
    assert margin > 1e-6  # the engine reads the metric in float32
    circuit = dj.acdc(wide, found, threshold)
    assert set(circuit.edges) == expected
    assert 0 < len(circuit) < len(found)
    assert circuit.values[0] == dj.circuit(wide, found, circuit.edges).values[0]
    assert circuit.how == f"ACDC, threshold {threshold:g}"
    assert wide.sessions() == ()


def test_planted_circuits_are_what_is_left() -> None:
    for planted, asked, known in ((relays(), RELAY, RELAYED), (induction._planted(), INDUCTION, INDUCED)):
        with one_thread(), reached(build_desk(planted)) as [engine]:
            scored = dj.edges(engine, **asked)
            circuit = dj.acdc(engine, scored, 0.05 * (scored.clean - scored.corrupted))
            assert set(circuit.edges) == set(known)
            assert circuit.faithfulness == pytest.approx(1.0, abs=0.05)


def test_what_is_asked_ahead_changes_nothing(wide: RemoteEngine, found: Edges, monkeypatch: pytest.MonkeyPatch) -> None:
    threshold = 0.02 * abs(found.clean - found.corrupted)
    together = dj.acdc(wide, found, threshold)
    monkeypatch.setattr(pruning, "FEW", 1)
    monkeypatch.setattr(pruning, "AHEAD", 1)
    assert dj.acdc(wide, found, threshold).edges == together.edges


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
    circuit = dj.acdc(wide, scored, 0.01, first=30, on_progress=lambda *so_far: said.append(so_far))
    columns = {(writer, reader) for writer, reader, _ in scored.top(30)}
    assert set(circuit.edges) < columns
    assert circuit.interval is None
    present = dj.circuit(wide, scored, list(columns)).values.mean()
    for edge in sorted(columns, key=lambda edge: (scored.readers.index(edge[1]), scored.writers.index(edge[0])))[::-1]:
        without = dj.circuit(wide, scored, list(columns - {edge})).values.mean()
        if abs(without - present) < 0.01:
            columns, present = columns - {edge}, without
    assert set(circuit.edges) == columns
    assert said[0] == (0, 30, 30)
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


def test_what_cannot_be_pruned_is_refused_in_one_sentence(wide: RemoteEngine, found: Edges) -> None:
    for threshold in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="larger than 0"):
            dj.acdc(wide, found, threshold)
    with pytest.raises(UsageError, match="has from 0 to"):
        dj.acdc(wide, found, 0.1, first=len(found) + 1)
    bare = Edges([msgspec.structs.replace(one, made=None) for one in found.replies])
    with pytest.raises(UsageError, match="score them anew"):
        dj.acdc(wide, bare, 0.1)


def test_an_interrupt_ends_it_and_leaves_no_session(wide: RemoteEngine, found: Edges) -> None:
    def interrupt(done: int, edges: int, kept: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(dj.WorkInterrupted, match="The pruning of a circuit was interrupted"):
        dj.acdc(wide, found, 1e-9, first=30, on_progress=interrupt)
    assert wide.sessions() == ()
