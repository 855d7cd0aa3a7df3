"""Gradients of a model whose weights really stream: every verb that goes backward refuses it in one sentence, and the
session stays as it was. What is trained on its activations needs no way back through it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests import transcoders
from tests.client.reached import reached
from tests.engine.desk import Desk
from tests.engine.memory.weights.streaming import streamed, streamed_desk
from tests.threads import one_thread

LINE, OTHER = [9, 8, 7, 21, 9], [9, 8, 7, 22, 9]
PAIR: Final[dict[str, Any]] = {"clean": LINE, "corrupted": OTHER, "metric": "logit(5) - logit(7)"}
REFUSED: Final = (
    "This model gives no gradients: its weights stream, and are gone from the device by the way back. Sweep instead."
)
VERBS: Final[dict[str, Callable[[RemoteEngine], object]]] = {
    "attribution": lambda engine: dj.attribute(engine, **PAIR, site="z.*[*]"),
    "gradient x activation": lambda engine: dj.attribute(
        engine, corrupted=OTHER, metric="logit(5)", site="resid_post.*"
    ),
    "of an edit": lambda engine: dj.attribute(
        engine, corrupted=OTHER, metric="logit(5)", site="mlp_out.*", edit=dj.scale(0.5)
    ),
    "integrated gradients": lambda engine: dj.attribute(engine, **PAIR, site="resid_pre.0", over="position", steps=4),
    "AtP*": lambda engine: dj.attribute(engine, **PAIR, site="q.*[*]", corrections=("attention", "cancellation")),
    "confirmed": lambda engine: dj.attribute(engine, **PAIR, site="resid_post", over="layer", top=2),
    "edges": lambda engine: dj.edges(engine, **PAIR),
    "integrated edges": lambda engine: dj.edges(engine, **PAIR, steps=3),
    "graph": lambda engine: dj.attribution_graph(engine, LINE, "logit(5)"),
}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield streamed_desk("llama", layers=3)


@pytest.fixture
def engine(desk: Desk) -> Iterator[RemoteEngine]:
    with reached(desk) as [engine]:
        yield engine


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_goes_backward_refuses_it(engine: RemoteEngine, desk: Desk, tmp_path: Path, verb: str) -> None:
    assert streamed(desk).streamed
    width = desk.engine.anatomy.hidden_size
    layers = {layer: transcoders.drawn(width, seed=layer) for layer in range(3)}
    engine.add_transcoders("tc", transcoders.set_saved(tmp_path / "tc", layers), "mlp_in")
    session = engine.session("mine", fresh=True)
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=2)
    before = session.inspect().value
    try:
        with pytest.raises(UsageError, match=f"^{re.escape(REFUSED)}$"):
            VERBS[verb](engine)
        assert [one.name for one in engine.sessions()] == ["mine"]
        assert np.array_equal(session.inspect().value, before)
        assert session.resume(free=True).tokens
    finally:
        engine.remove_module("tc")


def test_what_is_trained_on_its_activations_is_trained(engine: RemoteEngine, tmp_path: Path) -> None:
    """Training goes backward through the module alone, in a process of its own."""
    acts = engine.collect(
        [LINE, OTHER, LINE[:3], OTHER[1:]], ["resid_post.1", "resid_post.2"], to=tmp_path / "acts", mode="exact"
    )
    small: dict[str, Any] = {"steps": 2, "batch": 4}
    lens = dj.train_tuned_lens(engine, acts, to=tmp_path / "lens", site="resid_post.1", **small)
    assert dj.reproduce(engine, lens.folder, collection=acts).same
