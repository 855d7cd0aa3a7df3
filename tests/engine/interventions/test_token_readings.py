"""What is read of one token in a row of logits: against torch's own functions, and for logits that are no numbers."""

from __future__ import annotations

import math

import pytest
import torch

from djinn_jupyter.engine.passes.conditions import READINGS, of_token


def test_readings_are_those_of_torch() -> None:
    logits_V = torch.tensor([0.5, 3.0, -1.0, 2.0])
    assert of_token("logit", logits_V, 3) == 2.0
    assert of_token("prob", logits_V, 3) == of_token("p", logits_V, 3) == float(logits_V.softmax(-1)[3])
    order = logits_V.argsort(descending=True).tolist()
    assert [of_token("rank", logits_V, token) for token in order] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["logit", "prob", "p", "rank"])
def test_a_token_without_a_number_has_no_reading(name: str) -> None:
    assert math.isnan(of_token(name, torch.tensor([0.5, math.nan, 1.0]), 1))


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_has_the_gradient_that_it_declares_or_says_why_none(name: str) -> None:
    reading, logits_V, step = READINGS[name], torch.tensor([0.5, 3.0, -1.0, 2.0], dtype=torch.float64), 1e-5
    found_V = torch.zeros_like(logits_V)
    if reading.add_slope is None:
        assert reading.why_none
        return
    reading.add_slope(found_V, 2.0, logits_V, 3)
    ahead, behind = (
        [reading.of(logits_V + way, 3) for way in ways] for ways in (step * torch.eye(4), -step * torch.eye(4))
    )
    slopes = [2.0 * (one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True)]
    assert found_V.tolist() == pytest.approx(slopes, abs=1e-6)
