"""`engine.add_adapter` reads a folder here and sends its matrices; `session.adapter` says who computes with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import IllegalMove, UsageError
from tests import adapters
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

ENDS = ("q_proj", "o_proj", "down_proj")
PROMPT, OTHER = [9, 8, 7, 21, 22], [9, 8, 7, 30, 31]


@pytest.fixture
def folder(engine: RemoteEngine, tmp_path: Path) -> Iterator[Path]:
    tensors = adapters.drawn(build("llama", layers=engine.description.layers), ENDS)
    yield adapters.saved(tmp_path / "sql", tensors)
    for session in engine.sessions():
        engine.session(session.name, join=True, fresh=True, force=True).close()
    for one in engine.adapters():
        engine.remove_adapter(one.name)


def test_base_and_fine_tuned_are_two_sessions(engine: RemoteEngine, folder: Path) -> None:
    added = engine.add_adapter("sql", folder)
    assert (added.targets, added.modules) == (("down_proj", "o_proj", "q_proj"), 3 * engine.description.layers)
    base, tuned = engine.session("base"), engine.session("tuned", adapter="sql")
    assert (base.adapter, tuned.adapter) == (None, "sql")
    last = f"resid_post.{engine.description.layers - 1}"
    for session in (base, tuned):
        session.breakpoint(last)
        session.run(PROMPT, max_new_tokens=1)
    base.edit(dj.patch_from(tuned))
    ends = [session.resume(free=True).logits for session in (base, tuned)]
    assert np.array_equal(*ends)
    assert engine.adapters()[0].sessions == ("tuned",)
    with pytest.raises(IllegalMove, match="choose an adapter in a new session"):
        base.adapter = "sql"


def test_a_grid_is_reproduced_with_the_adapter_that_it_was_made_with(engine: RemoteEngine, folder: Path) -> None:
    engine.add_adapter("sql", folder)
    tuned = engine.session("tuned", adapter="sql")
    tuned.run(PROMPT, max_new_tokens=1)
    grid = dj.sweep(
        engine, corrupted=tuned, site="mlp_out", over=("layer",), edit=dj.zero(), metric="logit(5)", mode="exact"
    )
    base = dj.sweep(
        engine, corrupted=PROMPT, site="mlp_out", over=("layer",), edit=dj.zero(), metric="logit(5)", mode="exact"
    )
    assert not np.array_equal(grid.values, base.values)
    assert dj.reproduce(engine, grid).same
    tuned.close()
    engine.remove_adapter("sql")
    with pytest.raises(UsageError, match=r"It was computed with the adapter sql of .*, which is not added here"):
        dj.reproduce(engine, grid)
    engine.add_adapter("renamed", folder)
    assert dj.reproduce(engine, grid).same


METRIC = "logit(5) - logit(7)"
LINES: dict[str, Any] = {"clean": PROMPT, "corrupted": OTHER, "metric": METRIC}
CIRCUIT = [("embed", "v.0[1]"), ("z.0[3]", "mlp_in.1"), ("mlp_out.1", "logits")]
WORK: dict[str, Callable[..., Any]] = {
    "loss": lambda engine, **how: engine.loss([PROMPT, OTHER], **how),
    "head scores": lambda engine, **how: engine.head_scores([PROMPT, OTHER], **how),
    "direct": lambda engine, **how: dj.direct(engine, PROMPT, metric=METRIC, **how),
    "pairs": lambda engine, **how: dj.sweep(
        engine, clean=[PROMPT, OTHER], corrupted=[OTHER, PROMPT], metric=METRIC, site="mlp_out", over="layer", **how
    ),
    "attribute": lambda engine, **how: dj.attribute(engine, **LINES, site="mlp_out", over="layer", top=2, **how),
    "path": lambda engine, **how: dj.path(engine, "mlp_out.0 -> logits", **LINES, **how),
    "edges": lambda engine, **how: dj.edges(engine, **LINES, top=2, **how),
    "circuit": lambda engine, **how: dj.circuit(engine, dj.edges(engine, **LINES, **how), CIRCUIT),
}


@pytest.mark.parametrize("work", WORK)
def test_work_on_prompts_is_that_of_the_fine_tuned_model(
    engine: RemoteEngine, merged: RemoteEngine, folder: Path, work: str
) -> None:
    """The model with the adapter's products in its weights has the same numbers but for rounding; one without them, and
    a session beside, others."""
    engine.add_adapter("sql", folder)
    found, base = WORK[work](engine, adapter="sql"), WORK[work](engine)
    np.testing.assert_allclose(found.values, WORK[work](merged).values, rtol=2e-3, atol=2e-4)
    assert not np.allclose(found.values, base.values, rtol=2e-3, atol=2e-4, equal_nan=True)
    again = dj.reproduce(engine, found)
    assert again.same, again
    assert engine.sessions() == ()


def test_a_collection_is_of_the_fine_tuned_model_and_of_no_other(
    engine: RemoteEngine, folder: Path, tmp_path: Path
) -> None:
    engine.add_adapter("sql", folder)
    acts = engine.collect([PROMPT, OTHER], "resid_post.1", to=tmp_path / "tuned", adapter="sql")
    session = engine.session("tuned", adapter="sql")
    session.breakpoint("resid_post.1")
    session.run(PROMPT, max_new_tokens=1)
    assert np.array_equal(acts["resid_post.1"][0], session.stop.hidden)
    session.close()
    assert acts.exact
    assert acts.notes == (
        "Each prompt was run alone, for these cannot share a pass: they are passes with the adapter sql.",
    )
    assert acts.recipe["adapter"]["name"] == "sql"
    assert dj.reproduce(engine, acts).same
    with pytest.raises(UsageError, match=r"is of another collection \(adapter: "):
        engine.collect([PROMPT, OTHER], "resid_post.1", to=tmp_path / "tuned")


def test_a_session_line_keeps_its_own_adapter(engine: RemoteEngine, folder: Path) -> None:
    engine.add_adapter("sql", folder)
    session = engine.session("mine")
    session.run(PROMPT, max_new_tokens=1)
    given = {"corrupted": session, "metric": METRIC}
    for work in (
        lambda: dj.sweep(engine, **given, site="mlp_out", over="layer", edit=dj.zero(), adapter="sql"),
        lambda: dj.attribute(engine, **given, site="mlp_out", over="layer", adapter="sql"),
        lambda: dj.edges(engine, clean=PROMPT, **given, adapter="sql"),
    ):
        with pytest.raises(UsageError, match="computed with the adapter that the session has: leave adapter out"):
            work()
    with pytest.raises(UsageError, match="There is no adapter tuned; there are sql"):
        engine.loss([PROMPT], adapter="tuned")


@pytest.fixture(scope="module")
def merged() -> Iterator[RemoteEngine]:
    """An engine of the model with the products of the fixture's adapter in its weights."""
    tensors = adapters.drawn(build("llama", layers=3), ENDS)
    with reached(build_desk(adapters.merged(build("llama", layers=3), tensors), tokenizer())) as [found]:
        yield found


def test_folders_that_are_none_or_of_another_model_are_refused(engine: RemoteEngine, folder: Path) -> None:
    with pytest.raises(UsageError, match="names no folder"):
        engine.add_adapter("sql", " ")
    with pytest.raises(UsageError, match="There is no folder"):
        engine.add_adapter("sql", folder / "missing")
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        engine.session("tuned", adapter="sql")
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        engine.remove_adapter("sql")
    config = folder / "adapter_config.json"
    said = json.loads(config.read_text()) | {"of_tomorrow": None}
    config.write_text(json.dumps(said | {"base_model_name_or_path": "google/gemma-2-2b"}))
    with pytest.raises(UsageError, match="has base_model_name_or_path 'google/gemma-2-2b', and this engine serves"):
        engine.add_adapter("sql", folder)
    config.write_text(json.dumps(said | {"base_model_name_or_path": engine.description.name}))
    assert engine.add_adapter("sql", folder).note == "its files also have of_tomorrow, unknown here and without a value"
