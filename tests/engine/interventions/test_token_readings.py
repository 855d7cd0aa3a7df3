"""What is read of one token in a row of logits: against torch's own functions, and for logits that are no numbers."""

from __future__ import annotations

import math

import pytest
import torch

from djinn_jupyter.engine.interventions.token_readings import of_token


def test_readings_are_those_of_torch() -> None:
    logits_V = torch.tensor([0.5, 3.0, -1.0, 2.0])
    assert of_token("logit", logits_V, 3) == 2.0
    assert of_token("prob", logits_V, 3) == of_token("p", logits_V, 3) == float(logits_V.softmax(-1)[3])
    order = logits_V.argsort(descending=True).tolist()
    assert [of_token("rank", logits_V, token) for token in order] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["logit", "prob", "p", "rank"])
def test_a_token_without_a_number_has_no_reading(name: str) -> None:
    assert math.isnan(of_token(name, torch.tensor([0.5, math.nan, 1.0]), 1))
