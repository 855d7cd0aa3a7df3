"""`engine.add_adapter` reads a folder here and sends its matrices; `session.adapter` says who computes with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import IllegalMove, UsageError
from tests import adapters
from tests.families import build

PROMPT, OTHER = [9, 8, 7, 21, 22], [9, 8, 7, 30, 31]


@pytest.fixture
def folder(engine: RemoteEngine, tmp_path: Path) -> Iterator[Path]:
    tensors = adapters.drawn(build("llama", layers=engine.description.layers), ("q_proj", "o_proj", "down_proj"))
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


def test_rows_of_a_batch_and_forks_compute_with_it(engine: RemoteEngine, folder: Path) -> None:
    engine.add_adapter("sql", folder)
    tuned, alone = engine.session("tuned", adapter="sql"), engine.session("alone", adapter="sql")
    tuned.run(PROMPT, max_new_tokens=1)
    rows = tuned.run([PROMPT, OTHER], max_new_tokens=3, ignore_eos=True)
    for row, prompt in zip(rows, (PROMPT, OTHER), strict=True):
        assert np.array_equal(row.logits, alone.run(prompt, max_new_tokens=3, ignore_eos=True).logits)
    assert all(engine.reach(f"tuned/{number}").adapter == "sql" for number in range(2))


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


def test_losses_are_measured_again_with_the_adapter_that_held(engine: RemoteEngine, folder: Path) -> None:
    engine.add_adapter("sql", folder)
    losses = engine.session("tuned", adapter="sql").loss([PROMPT, OTHER])
    assert not np.array_equal(losses[0], engine.loss([PROMPT, OTHER])[0])
    assert dj.reproduce(engine, losses).same
    engine.reach("tuned").close()
    engine.remove_adapter("sql")
    with pytest.raises(UsageError, match=r"It was computed with the adapter sql of .*, which is not added here"):
        dj.reproduce(engine, losses)


def test_folders_that_are_none_are_refused(engine: RemoteEngine, folder: Path) -> None:
    with pytest.raises(UsageError, match="names no folder"):
        engine.add_adapter("sql", " ")
    with pytest.raises(UsageError, match="There is no folder"):
        engine.add_adapter("sql", folder / "missing")
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        engine.session("tuned", adapter="sql")
    with pytest.raises(UsageError, match="There is no adapter sql; there are none"):
        engine.remove_adapter("sql")
