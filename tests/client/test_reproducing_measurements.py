"""Losses, head scores and patterns are kept with their recipe, and measured again from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import djinn_jupyter as dj
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.errors import UsageError
from djinn_jupyter.methods.datasets.api import scoring
from tests.client import tables

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
    found = tables.made_again(engine, losses, tmp_path)
    assert repr(found) == f"The same bits: 13 values of {losses!r}."
    assert (losses.recipe["lines"], losses.recipe["seed"]) == ([tuple(prompt) for prompt in PROMPTS], 3)
    assert load_file(tmp_path / "kept.losses.djinn")["losses 0"].tobytes() == losses.values.tobytes()


def test_losses_of_several_requests_are_measured_in_the_same_ones(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as few:
        few.setattr(scoring, "ASKED_TOKENS", 8)
        losses = engine.loss(PROMPTS, mode="fast")
    assert len(losses.replies) == 3
    again = tables.made_again(engine, losses, tmp_path).again
    assert [reply.tokens for reply in again.replies] == [reply.tokens for reply in losses.replies]


def test_the_rules_and_the_attention_of_a_session_are_in_the_recipe(engine: RemoteEngine, tmp_path: Path) -> None:
    session = ruled(engine)
    losses = session.loss(PROMPTS)
    session.unsteer()
    assert not np.array_equal(losses.values, session.loss(PROMPTS).values)
    session.close()
    assert [rule.site for rule in losses.recipe["rules"]] == ["mlp_out.1", "resid_post.*"]
    assert losses.recipe["attention"] == "eager"
    tables.made_again(engine, losses, tmp_path)


def test_head_scores_and_patterns_are_measured_again(engine: RemoteEngine, tmp_path: Path) -> None:
    tables.made_again(engine, engine.head_scores(PROMPTS), tmp_path)
    session = ruled(engine)
    session.run(PROMPTS[0], max_new_tokens=0)
    patterns = session.patterns()
    session.close()
    tables.made_again(engine, patterns, tmp_path)


def test_prompts_that_shared_passes_are_said_to_where_bits_differ(engine: RemoteEngine) -> None:
    losses = engine.loss(PROMPTS, mode="fast")
    losses.values = losses.values + 1
    found = dj.reproduce(engine, losses)
    assert found.notes == (
        "Prompts that shared passes may have other last bits where other ones shared them; "
        'those of mode="exact" have not.',
    )


def test_what_is_no_such_result_is_one_sentence(engine: RemoteEngine, tmp_path: Path) -> None:
    scores = engine.head_scores(PROMPTS).save(tmp_path / "a.heads.djinn")
    with pytest.raises(UsageError, match="The file has head scores, and no patterns"):
        dj.HeadPatterns.read(scores)
    with pytest.raises(UsageError, match=r"^Grids, losses, .* are computed again; 5 is none of these"):
        dj.reproduce(engine, 5)
    with pytest.raises(UsageError, match=r"^collection is .*Activations or a text or .*, not 5\.$"):
        dj.reproduce(engine, engine.loss(PROMPTS), collection=5)
