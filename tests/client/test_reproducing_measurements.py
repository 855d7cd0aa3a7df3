"""Losses, head scores and patterns are kept with their recipe, and measured again from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_jupyter.client.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api import scoring
from tests.client.reached import reached
from tests.engine.desk import build_desk
from tests.engine.words import tokenizer
from tests.families import build

PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 8, 7, 41, 22, 3], [1, 2, 4]]


def ruled(engine: RemoteEngine) -> Any:
    session = engine.session("mine", attention="eager")
    session.steer("mlp_out.1", dj.scale(0.5))
    session.steer("resid_post.*", dj.add(np.linspace(-1, 1, 32), coef=0.5), positions="2:")
    session.steer("resid_pre.0", dj.zero())
    session.rules()[2].off()
    return session


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_file_of_losses_is_measured_again_with_the_same_bits(engine: RemoteEngine, tmp_path: Path, mode: Any) -> None:
    losses = engine.loss(PROMPTS, mode=mode, seed=3)
    file = losses.save(tmp_path / "a.losses.djinn")
    read = dj.Losses.read(file)
    assert read.values.tobytes() == losses.values.tobytes()
    assert (read.recipe, read.columns(), repr(read)) == (losses.recipe, losses.columns(), repr(losses))
    assert (read.recipe["lines"], read.recipe["seed"]) == ([tuple(prompt) for prompt in PROMPTS], 3)
    found = dj.reproduce(engine, file)
    assert found.same, found
    assert repr(found) == f"The same bits: 13 values of {losses!r}."
    assert load_file(file)["losses 0"].tobytes() == losses.values.tobytes()


def test_losses_of_several_requests_are_measured_in_the_same_ones(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as few:
        few.setattr(scoring, "ASKED_TOKENS", 8)
        losses = engine.loss(PROMPTS, mode="fast")
    assert len(losses.replies) == 3
    again = dj.reproduce(engine, losses.save(tmp_path / "a.losses.djinn"))
    assert again.same, again
    assert isinstance(again.again, dj.Losses)
    assert [reply.tokens for reply in again.again.replies] == [reply.tokens for reply in losses.replies]


def test_the_rules_and_the_attention_of_a_session_are_in_the_recipe(engine: RemoteEngine, tmp_path: Path) -> None:
    session = ruled(engine)
    losses = session.loss(PROMPTS)
    session.unsteer()
    assert not np.array_equal(losses.values, session.loss(PROMPTS).values)
    session.close()
    assert [rule.site for rule in losses.recipe["rules"]] == ["mlp_out.1", "resid_post.*"]
    assert losses.recipe["attention"] == "eager"
    found = dj.reproduce(engine, losses.save(tmp_path / "a.losses.djinn"))
    assert found.same, found
    assert engine.sessions() == ()


def test_head_scores_and_patterns_are_measured_again(engine: RemoteEngine, tmp_path: Path) -> None:
    scores = engine.head_scores(PROMPTS)
    found = dj.reproduce(engine, scores.save(tmp_path / "a.heads.djinn"))
    assert found.same, found
    assert repr(found.again) == repr(scores) == repr(dj.HeadScores.read(tmp_path / "a.heads.djinn"))
    session = ruled(engine)
    session.run(PROMPTS[0], max_new_tokens=0)
    patterns = session.patterns()
    session.close()
    file = patterns.save(tmp_path / "a.patterns.djinn")
    assert dj.HeadPatterns.read(file).columns() == patterns.columns()
    assert dj.reproduce(engine, file).same


def test_another_model_is_named_with_the_token_that_differs_most(engine: RemoteEngine, tmp_path: Path) -> None:
    losses = engine.loss(PROMPTS)
    scores = engine.head_scores(PROMPTS).save(tmp_path / "a.heads.djinn")
    model = build("llama", layers=3)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0] += 1
    with reached(build_desk(model, tokenizer())) as [trained]:
        found, heads = dj.reproduce(trained, losses), dj.reproduce(trained, scores)
    assert [name for name, _, _ in found.origin] == ["model", "weights"]
    differences = np.abs(losses.values - found.again.values)
    at = int(differences.argmax())
    table = losses.columns()
    assert found.place == {"prompt": table["prompt"][at], "position": table["position"][at]}
    assert (found.same, found.different) == (False, np.count_nonzero(differences))
    assert found.largest_difference == pytest.approx(differences.max())
    assert heads.place["layer"] == 2, "the layer behind the changed one"
    with (
        reached(build_desk(build("gpt2", layers=2), tokenizer())) as [other],
        pytest.raises(UsageError, match=r"The measurement is of .*, which cannot repeat it: measured again there are"),
    ):
        dj.reproduce(other, scores)


def test_prompts_that_shared_passes_are_said_to_where_bits_differ(engine: RemoteEngine) -> None:
    losses = engine.loss(PROMPTS, mode="fast")
    losses.values = losses.values + 1
    found = dj.reproduce(engine, losses)
    assert found.notes == (
        "Prompts that shared passes may have other last bits where other ones shared them; "
        'those of mode="exact" have not.',
    )


def test_a_file_that_is_none_of_ours_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    losses = engine.loss(PROMPTS)
    file = losses.save(tmp_path / "a.losses.djinn")
    whole = file.read_bytes()
    for spoiled, said in (
        (whole[:-1], "is truncated"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "is damaged"),
        (b"", "is no file of losses"),
        (engine.head_scores(PROMPTS).save(tmp_path / "a.heads.djinn").read_bytes(), "is no file of losses that Djinn"),
    ):
        file.write_bytes(spoiled)
        with pytest.raises(UsageError, match=rf"^a\.losses\.djinn {said}.*\.$"):
            dj.reproduce(engine, file)
    with pytest.raises(UsageError, match=r"file of losses is kept in a file that ends in \.losses\.djinn"):
        losses.save(tmp_path / "a.grid.djinn")
    with pytest.raises(UsageError, match=r"There is another 'a\.losses\.djinn' already"):
        losses.save(file)
    scores = tmp_path / "a.heads.djinn"
    with pytest.raises(UsageError, match="The file has head scores, and no patterns"):
        dj.HeadPatterns.read(scores)
    with pytest.raises(UsageError, match=r"^Grids, losses, .* are computed again; 5 is none of these"):
        dj.reproduce(engine, 5)
    with pytest.raises(UsageError, match=r"^collection is .*Activations or a text or .*, not 5\.$"):
        dj.reproduce(engine, losses, collection=5)
