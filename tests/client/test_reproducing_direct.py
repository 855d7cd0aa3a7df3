"""A direct attribution is kept with its recipe, and told again from it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from tests.client.reached import reached
from tests.engine.desk import build_desk, tokens
from tests.engine.words import tokenizer
from tests.families import build

LINE, METRIC = tokens(9), "logit(17) - logit(42)"


@pytest.mark.parametrize("over", ["layer", "layer,head", "layer,head,neuron"])
def test_parts_come_back_and_are_told_again_with_the_same_bits(engine: RemoteEngine, tmp_path: Path, over: str) -> None:
    parts = dj.direct(engine, LINE, metric=METRIC, over=over)
    file = parts.save(tmp_path / "fact.direct.djinn")
    read = dj.Attribution.read(file)
    assert read.values.tobytes() == parts.values.tobytes()
    assert (read.columns(), read.recipe, repr(read)) == (parts.columns(), parts.recipe, repr(parts))
    assert (parts.recipe["lines"], parts.recipe["tokens"]) == ([LINE], [17, 42])
    found = dj.reproduce(engine, file)
    assert found.same, found
    assert found.lines()[0].startswith(f"The same bits: {len(parts.values)} values of Attribution of the logit")
    assert engine.sessions() == ()


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


def at_a_later_token(session: Any) -> None:
    session.breakpoint("mlp_out.1", when="step == 2")
    session.run(LINE, max_new_tokens=4)


def of_an_extended_line(session: Any) -> None:
    session.run(LINE, max_new_tokens=3, free=True)
    session.breakpoint("resid_post.1")
    session.run([3, 4, 5], max_new_tokens=2, extend=True)


def behind_rules(session: Any) -> None:
    session.steer("resid_post.0", dj.scale(0.5), positions="2:")
    session.run(LINE, max_new_tokens=2, free=True)
    session.unsteer()
    of_an_extended_line(session)


def gone_back(session: Any) -> None:
    session.run(LINE, max_new_tokens=6, free=True)
    session.back(2, by="token")
    session.step(2)


BEHIND: Final[dict[str, Callable[[Any], None]]] = {
    "a later token": at_a_later_token,
    "an extended line": of_an_extended_line,
    "passes under rules": behind_rules,
    "a step back": gone_back,
}


@pytest.mark.parametrize("stop", BEHIND)
def test_parts_behind_other_passes_are_told_again(engine: RemoteEngine, tmp_path: Path, stop: str) -> None:
    session = engine.session("mine", fresh=True)
    BEHIND[stop](session)
    told = [session.attribute(17, heads=True), session.attribute(17, 42, heads=True, neurons=True, ahead=True)]
    session.close()
    for n, parts in enumerate(told):
        assert parts.recipe["passes"]
        read = dj.Attribution.read(parts.save(tmp_path / f"{n}.direct.djinn"))
        assert (read.recipe, read.values.tobytes()) == (parts.recipe, parts.values.tobytes())
        found = dj.reproduce(engine, tmp_path / f"{n}.direct.djinn")
        assert (found.same, found.origin) == (True, ()), found
    assert engine.sessions() == ()


def test_another_model_is_named_with_the_part_that_differs_most(engine: RemoteEngine, tmp_path: Path) -> None:
    parts = dj.direct(engine, LINE, metric=METRIC, over="layer,head,neuron")
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[:, 5] += 1
    with reached(build_desk(model, tokenizer())) as [trained]:
        found = dj.reproduce(trained, parts)
    assert [name for name, _, _ in found.origin] == ["model", "weights"]
    assert not found.same
    assert found.place == {"point": "mlp_post", "layer": 2, "neuron": 5}
    with (
        reached(build_desk(build("gpt2", layers=2), tokenizer())) as [other],
        pytest.raises(UsageError, match=r"which cannot repeat it: its parts are of layers 0 to 2, .* has 2 layers"),
    ):
        dj.reproduce(other, parts.save(tmp_path / "fact.direct.djinn"))


def test_a_file_that_is_none_of_ours_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    file = dj.direct(engine, LINE, metric=METRIC).save(tmp_path / "fact.direct.djinn")
    whole = file.read_bytes()
    other_end = whole[:-1] + bytes([whole[-1] ^ 1])
    for spoiled, said in ((whole[:-1], "is truncated"), (other_end, "is damaged"), (b"", "is no file of a direct")):
        file.write_bytes(spoiled)
        with pytest.raises(UsageError, match=rf"^fact\.direct\.djinn {said}"):
            dj.reproduce(engine, file)


def test_values_are_the_parts_of_the_table(engine: RemoteEngine) -> None:
    parts: Any = dj.direct(engine, LINE, metric=METRIC, over="layer,neuron")
    assert np.array_equal(parts.values, parts.columns()["value"])
    assert parts.values.sum() == pytest.approx(parts.logit, abs=1e-9)
