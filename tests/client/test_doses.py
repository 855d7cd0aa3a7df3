"""Dose-responses: one run over the coefficients of a rule, each a row that is what its rule alone gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import djinn_jupyter as dj
from djinn_jupyter.api.batches import doses_of, responses
from djinn_jupyter.api.engine import RemoteEngine
from djinn_jupyter.api.stops import Finished, Paused
from djinn_jupyter.errors import InvalidCondition, UsageError
from tests.client.test_batches import DRAWN, PROMPT, alike

COEFS = [0.0, 0.5, 3.0]
VECTOR = np.linspace(-1, 1, 32, dtype=np.float32)


@pytest.mark.parametrize(
    "edit", [dj.scale, lambda coef: dj.add(VECTOR, coef), lambda coef: dj.norm_match(VECTOR, coef)]
)
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_each_coefficient_is_a_row_and_bit_for_bit_its_rule_alone(engine: RemoteEngine, edit: Any, mode: Any) -> None:
    session = engine.session("a")
    session.steer(1, edit(7.0))
    rows = session.run(PROMPT, coefs=COEFS, max_new_tokens=4, ignore_eos=True, mode=mode)
    assert [row.session.name for row in rows] == ["a/0", "a/1", "a/2"]
    for row, coef in zip(rows, COEFS, strict=True):
        alone = engine.session("alone", fresh=True)
        alone.steer(1, edit(coef))
        assert alike(row, alone.run(PROMPT, max_new_tokens=4, ignore_eos=True))
    assert len({row.logits.tobytes() for row in rows}) == 3  # type: ignore[union-attr]
    assert session.rules()[0].edit == edit(7.0)


def test_samples_of_a_coefficient_share_its_prompt_under_its_rule(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0), -1)
    session.steer(0, dj.zero(), 0)
    rows = session.run(PROMPT, coefs=[0.0, 2.0], rule=1, samples=2, seed=3, **DRAWN)
    assert doses_of(rows, [0.0, 2.0], 2) == [0.0, 0.0, 2.0, 2.0]
    alone = engine.session("alone")
    alone.steer(1, dj.scale(2.0), -1)
    alone.steer(0, dj.zero(), 0)
    assert alike(rows[3], alone.run(PROMPT, seed=6, **DRAWN))


def test_a_rule_that_is_off_is_on_in_the_rows(engine: RemoteEngine) -> None:
    session = engine.session("a")
    rule = session.steer(1, dj.scale(1.0))
    rule.off()
    [row] = session.run(PROMPT, coefs=[0.0], max_new_tokens=0)
    assert (row.session.rules()[0].enabled, session.rules()[0].enabled) == (True, False)
    assert row.rules[0].passes_changed == 1  # type: ignore[union-attr]


def test_the_response_is_the_metric_of_the_rows_that_finished(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0), -1)
    rows = session.run(PROMPT, coefs=[3.0, 0.0], max_new_tokens=0)
    found = responses(rows, [3.0, 0.0], ["logit(7) - logit(8)", "rank(7)"])
    assert list(found) == [0.0, 3.0]
    logits = rows[0].logits  # type: ignore[union-attr]
    assert found[3.0] == (float(logits[7]) - float(logits[8]), float((logits > logits[7]).sum()) + 1)
    session.breakpoint("resid_post.2")
    stopped = session.run(PROMPT, coefs=[0.0], max_new_tokens=0)
    assert isinstance(stopped[0], Paused)
    assert responses(stopped, [0.0], ["logit(7)"]) == {}
    with pytest.raises(UsageError, match="finished no pass yet"):
        stopped[0].session.metrics("logit(7)")  # type: ignore[attr-defined]
    with pytest.raises(InvalidCondition, match="metric"):
        session.metrics("logits(7)")
    with pytest.raises(InvalidCondition, match="name exactly one"):  # so that a batch asks before it runs
        session.metrics("logit(' no one token')")


@pytest.mark.parametrize(
    ("rules", "given", "said"),
    [
        ([], {"coefs": [1.0]}, "a steering rule its coefficients, and there is none here"),
        ([dj.scale(1.0), dj.scale(2.0)], {"coefs": [1.0]}, "name one of 1, 2 "),
        (
            [dj.scale(1.0)],
            {"coefs": [1.0], "rule": 4},
            "There is no steering rule 4 to give coefficients to; there are: 1",
        ),
        ([dj.zero()], {"coefs": [1.0]}, "needs an edit with a coefficient: .*; zero has none"),
        ([dj.scale(1.0)], {"coefs": [0.0, float("nan")]}, "finite in float32, and nan is none"),
        ([dj.scale(1.0)], {"coefs": [1e39]}, "finite in float32"),
        ([dj.scale(1.0)], {"coefs": []}, "A batch has 1 to 4096 rows, not 0"),
        ([dj.scale(1.0)], {"rule": 1}, "give these too"),
        ([dj.scale(1.0)], {"prompt": None, "coefs": [1.0], "extend": True}, "nothing to extend; run a prompt first"),
        ([dj.scale(1.0)], {"prompt": None, "coefs": [1.0]}, "The prompt has no tokens"),
    ],
)
def test_what_no_row_could_have_is_one_sentence_and_leaves_the_rows_before(
    engine: RemoteEngine, rules: list[Any], given: dict[str, Any], said: str
) -> None:
    session = engine.session("a")
    before = session.run([PROMPT, PROMPT[:2]], max_new_tokens=0)
    for rule in rules:
        session.steer(1, rule)
    with pytest.raises(UsageError, match=said):
        session.run(**{"prompt": PROMPT, "max_new_tokens": 0, **given})
    assert all(np.array_equal(row.session.logits(), row.logits) for row in before)  # type: ignore[union-attr]


@pytest.mark.parametrize(("texts", "said"), [((), "none was given"), ((3,), "3 is none"), (("rank(1)", None), "None")])
def test_a_metric_is_a_text(engine: RemoteEngine, texts: tuple[Any, ...], said: str) -> None:
    session = engine.session("a")
    session.run(PROMPT, max_new_tokens=0)
    with pytest.raises(UsageError, match=f"^A metric is a text such as .*; {said}"):
        session.metrics(*texts)


def test_rows_have_the_logits_of_all_positions_where_they_are_asked_for(engine: RemoteEngine) -> None:
    session = engine.session("a")
    session.steer(1, dj.scale(1.0))
    rows = session.run([PROMPT, PROMPT[:2]], coefs=[0.5], max_new_tokens=0, logits="all")
    alone = engine.session("alone")
    alone.steer(1, dj.scale(0.5))
    for row, prompt in zip(rows, (PROMPT, PROMPT[:2]), strict=True):
        assert isinstance(row, Finished)
        row.session.unsteer()  # type: ignore[attr-defined]
        expected = alone.run(prompt, max_new_tokens=0, logits="all").logits  # type: ignore[union-attr]
        assert row.logits.shape[0] == len(prompt)
        assert np.array_equal(row.logits, expected)
