"""How probable each generated token was: from the logits that it was taken from, kept with the line."""

from __future__ import annotations

import math
from typing import Any

import torch

from djinn_jupyter.widgets.views import result_view
from djinn_jupyter.wire.replies import TokenSampled
from tests.device import DEVICE
from tests.engine.desk import Desk, tokens
from tests.engine.plain import plain_of
from tests.widgets import samples

PROMPT, NEW = tokens(12), 6


def plain(seed: int | None = None, **settings: Any) -> list[float]:
    """Log-probabilities that plain Hugging Face gives to the tokens that it generates."""
    if seed is not None:
        torch.manual_seed(seed)
    made = plain_of("llama").generate(
        torch.tensor([PROMPT], device=DEVICE),
        attention_mask=torch.ones((1, len(PROMPT)), dtype=torch.long, device=DEVICE),
        max_new_tokens=NEW,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        do_sample=seed is not None,
        **settings,
    )
    chosen = made.sequences[0, len(PROMPT) :]
    return [float(torch.log_softmax(row[0], dim=-1)[token]) for row, token in zip(made.logits, chosen, strict=True)]


def test_they_are_those_of_the_models_own_logits(llama: Desk) -> None:
    llama.open()
    assert llama.run(PROMPT, NEW).log_probabilities == tuple(plain())


def test_a_temperature_chooses_other_tokens_and_changes_no_probability(llama: Desk) -> None:
    from djinn_jupyter.wire.nouns import Sampling

    llama.open()
    done = llama.run(PROMPT, NEW, sampling=Sampling(temperature=1.7, seed=3))
    assert done.log_probabilities == tuple(plain(seed=3, temperature=1.7))


def test_a_stop_has_those_so_far_and_going_back_takes_them_back(llama: Desk) -> None:
    llama.open()
    llama.stop_at(4, when="step == 3")
    stop = llama.run(PROMPT, NEW)
    whole = tuple(plain())
    assert stop.log_probabilities == whole[:3]
    llama.fork("b")
    assert llama.resume("b").log_probabilities == whole
    assert llama.resume().log_probabilities == whole
    assert llama.back(by="token", count=2).log_probabilities == whole[: NEW - 2]
    assert llama.resume().log_probabilities == whole


def test_the_card_says_them_under_the_pointer() -> None:
    html = str(result_view(samples.finished()).html)
    assert "&#x27; Paris&#x27; 99 %" in html or "' Paris' 99 %" in html
    parts = samples.finished(texts=(" <0xD9>", "<0x85>", "."), text=" م.")
    assert " م." in str(result_view(parts).html)


def test_a_line_of_an_earlier_version_has_none(llama: Desk) -> None:
    llama.open()
    llama.stop_at(4, when="step == 3")
    llama.run(PROMPT, NEW)
    generation = llama.session().generation
    generation.log_probabilities.clear()
    done = llama.resume()
    assert done.log_probabilities[:3] == (None, None, None)
    assert all(isinstance(one, float) and math.exp(one) <= 1 for one in done.log_probabilities[3:])


def test_each_token_streams_with_its_probability(llama: Desk) -> None:
    llama.open()
    llama.events.clear()
    done = llama.run(PROMPT, NEW)
    told = [event.log_probability for event in llama.events if isinstance(event, TokenSampled)]
    assert tuple(told) == done.log_probabilities
