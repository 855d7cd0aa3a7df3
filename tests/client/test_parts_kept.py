"""An interrupt of work in parts keeps the parts that were done, with the bits that they have alone; the line of the
wait says how many they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import MeasurementEnded, SlabFull
from djinn_jupyter.link import waiting
from djinn_jupyter.methods.circuits.api import circuits
from djinn_jupyter.methods.circuits.api.circuits import CircuitCurve
from djinn_jupyter.methods.circuits.request import AttributeEdges, RunCircuits
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.methods.sweep.request import Sweep
from djinn_jupyter.wire import requests as ask
from tests import saes

CLEAN: Final = [(9, 8, 7, 21), (5, 6, 7, 11), (3, 4, 7, 61)]
CORRUPTED: Final = [(9, 8, 7, 31), (5, 6, 7, 41), (3, 4, 7, 51)]
METRIC: Final = "logit(17) - logit(42)"
PAIRS: dict[str, Any] = {"clean": CLEAN, "corrupted": CORRUPTED, "metric": METRIC}


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    said.clear()
    step = waiting.Wait.step
    monkeypatch.setattr(waiting.Wait, "step", lambda wait, far: (said.append(far), step(wait, far)))


@pytest.fixture
def cut(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have the request of a kind with this number, counted from 0, be the last: it is interrupted, or fails."""
    channel: Any = engine.channel
    original = channel.ask
    with monkeypatch.context() as patch:

        def cut(kind: type, number: int, error: BaseException | None = None) -> None:
            left = iter(range(number))

            def asked(request: ask.Request) -> Any:
                if isinstance(request, kind) and next(left, None) is None:
                    raise error or KeyboardInterrupt
                return original(request)

            patch.setattr(channel, "ask", asked)

        yield cut
    assert engine.sessions() == ()


def kept(work: Callable[[], Any]) -> Any:
    with pytest.raises(dj.WorkInterrupted) as broken:
        work()
    assert ("`kept`" in str(broken.value)) == (broken.value.kept is not None), broken.value
    return broken.value.kept


def found(engine: RemoteEngine, count: int = 3) -> dj.Edges:
    return dj.edges(engine, clean=CLEAN[:count], corrupted=CORRUPTED[:count], metric=METRIC)


def test_edges_keep_the_pairs_that_were_scored(engine: RemoteEngine, cut: Callable[..., None], said: list[str]) -> None:
    first_two = found(engine, 2)
    cut(AttributeEdges, 0)
    assert kept(lambda: found(engine)) is None
    cut(AttributeEdges, 2)
    assert np.array_equal(kept(lambda: found(engine)).by_pair, first_two.by_pair, equal_nan=True)
    assert said[-1] == "2 of 3 pairs"


def test_edges_whose_patching_is_interrupted_are_whole(engine: RemoteEngine, cut: Callable[..., None]) -> None:
    whole = found(engine)
    cut(AttributeEdges, 4)
    left = kept(lambda: dj.edges(engine, **PAIRS, top=2))
    assert np.array_equal(left.by_pair, whole.by_pair, equal_nan=True)
    assert left.exact is None


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_circuit_keeps_the_pairs_that_it_ran_on(
    engine: RemoteEngine, cut: Callable[..., None], said: list[str], done: int
) -> None:
    edges = found(engine)
    whole = dj.circuit(engine, edges, 20)
    cut(RunCircuits, done)
    left = kept(lambda: dj.circuit(engine, edges, 20))
    assert (left is None) == (done == 0)
    assert done == 0 or (left.edges == whole.edges and np.array_equal(left.values, whole.values[:done]))
    assert said[-1] == f"{done} of 3 pairs"


@pytest.mark.parametrize("number", [6, 7])
def test_halving_keeps_the_smallest_circuit_so_far(engine: RemoteEngine, cut: Callable[..., None], number: int) -> None:
    edges = found(engine)
    cut(RunCircuits, number)  # the whole one, one more, and none or one pair of the next
    left = kept(lambda: dj.circuit(engine, edges, faithfulness=0.5))
    assert left.faithfulness >= 0.5
    cut(RunCircuits, 1000)
    assert np.array_equal(left.values, dj.circuit(engine, edges, len(left)).values)


@pytest.mark.parametrize("together", [2**18, 1])
def test_a_curve_keeps_what_was_run(
    engine: RemoteEngine, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    edges, sizes = found(engine), (0.01, 0.1, 0.5)
    whole = dj.circuit_curve(engine, edges, sizes)
    monkeypatch.setattr(circuits, "MOST_ASKED", together)  # 1: each circuit is asked for by itself
    cut(RunCircuits, 2 if together > 1 else 7)
    left = kept(lambda: dj.circuit_curve(engine, edges, sizes))
    assert isinstance(left, CircuitCurve)
    circuits_left, pairs = left.values.shape
    assert (circuits_left, pairs) == ((3, 2) if together > 1 else (2, 3))
    assert np.array_equal(left.values, whole.values[:circuits_left, :pairs])


def test_pruning_keeps_the_names_of_the_edges_that_are_left(engine: RemoteEngine, cut: Callable[..., None]) -> None:
    edges = found(engine, 1)
    cut(RunCircuits, 2)
    left = kept(lambda: dj.acdc(engine, edges, 1e9, first=30))
    assert 0 < len(left) < 30
    cut(RunCircuits, 1000)
    assert set(dj.circuit(engine, edges, left).edges) == set(left) <= {edge[:2] for edge in edges.top(30)}


def test_a_splice_keeps_whole_losses_by_name(
    engine: RemoteEngine, cut: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "djinn_jupyter.methods.datasets.api.scoring.ASKED_TOKENS", 4
    )  # a request for each prompt of each loss
    engine.add_module("sae", saes.saved(tmp_path / "sae", saes.drawn(32)), at="resid_post.1")
    model = engine.loss(CLEAN)
    try:
        for error, raised in ((None, dj.WorkInterrupted), (SlabFull("There is no page."), MeasurementEnded)):
            for number, names in ((7, ["zeroed", "model"]), (4, ["zeroed"])):
                cut(Score, number, error)
                with pytest.raises(raised) as broken:
                    dj.splice(engine, "sae.1", CLEAN)
                assert list(broken.value.kept) == names
                assert "model" not in names or np.array_equal(broken.value.kept["model"].values, model.values)
    finally:
        engine.remove_module("sae")


def test_paths_and_sweeps_say_which_pair_and_keep_the_cells(
    engine: RemoteEngine, cut: Callable[..., None], said: list[str]
) -> None:
    whole = dj.path(engine, "z -> logits", **PAIRS, mode="exact")
    assert "pair 3 of 3" in said
    assert any(one.endswith(" cells of pair 2 of 3") for one in said), said
    cut(Sweep, 1)
    left = kept(lambda: dj.path(engine, "z -> logits", **PAIRS, mode="exact"))
    assert np.array_equal(left.values[0], whole.values[0])
    assert np.isnan(left.values[1:]).all()


def test_what_is_counted_beforehand_is_said_as_a_part(engine: RemoteEngine, said: list[str], tmp_path: Path) -> None:
    engine.loss(CLEAN)
    assert said[-1] == "0 of 3 prompts"
    engine.collect(CLEAN, "z.0", to=tmp_path)
    assert said[-1] == "3 of 3 prompts"
    engine.loss(iter(CLEAN))
    assert said[-1] == "0 prompts"
    dj.reproduce(engine, found(engine))
    assert said[-1].startswith("2 of 3 pairs, attributing, ")
