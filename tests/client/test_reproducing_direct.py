"""A direct attribution is kept with its recipe, and told again from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests.client import tables
from tests.engine.desk import tokens

LINE, METRIC = tokens(9), "logit(17) - logit(42)"


@pytest.mark.parametrize("over", ["layer", "layer,head", "layer,head,neuron"])
def test_parts_come_back_and_are_told_again_with_the_same_bits(engine: RemoteEngine, tmp_path: Path, over: str) -> None:
    parts = dj.direct(engine, LINE, metric=METRIC, over=over)
    assert (parts.recipe["lines"], parts.recipe["tokens"]) == ([LINE], [17, 42])
    told = repr(tables.made_again(engine, parts, tmp_path))
    assert told.startswith(f"The same bits: {len(parts.values)} values of Attribution of the logit")


def test_an_attribution_at_a_plain_stop_has_a_recipe_and_others_say_why_not(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    session = engine.session("mine", attention="eager")
    session.breakpoint("mlp_out.1")
    session.run(LINE, max_new_tokens=3)
    inside = session.attribute(17, heads=True, position=4)
    assert inside.recipe["attention"] == "eager"
    assert dj.reproduce(engine, inside).same
    assert dj.reproduce(engine, session.attribute(17, ahead=True)).same
    session.edit(dj.scale(0.5))
    edited = session.attribute(17)
    session.resume()
    later = session.attribute(17)
    session.clear()
    session.steer("resid_post.0", dj.scale(0.5))
    session.breakpoint("resid_post.1")
    session.run(LINE, max_new_tokens=1)
    ruled = session.attribute(17)
    for one, why in (
        (edited, "the value of its stop is edited"),
        (later, "an earlier pass of its line was edited at a stop, or stopped under steering rules"),
        (ruled, "the pass was edited at an earlier stop, or stopped under steering rules"),
    ):
        for verb in (lambda one=one: one.save(tmp_path / "a.direct.djinn"), lambda one=one: dj.reproduce(engine, one)):
            with pytest.raises(UsageError, match=rf"^No recipe makes this Attribution again: {why}\. Its numbers stay"):
                verb()
    assert not list(tmp_path.iterdir())


def test_values_are_the_parts_of_the_table(engine: RemoteEngine) -> None:
    parts: Any = dj.direct(engine, LINE, metric=METRIC, over="layer,neuron")
    assert np.array_equal(parts.values, parts.columns()["value"])
    assert parts.values.sum() == pytest.approx(parts.logit, abs=1e-9)
