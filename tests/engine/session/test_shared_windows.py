"""Windows of attention in lines that share passes over new tokens: kept by masks, or not shared."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.passes.packing import why_not_in_columns
from tests.engine.desk import desk_of, tokens
from tests.engine.session.test_sharing import LENGTHS, NEW, run_at_once


def test_a_family_whose_masks_keep_no_window_shares_its_prompts_alone() -> None:
    """Moshi's cache drops rows behind the window; its masks would leave a line all columns."""
    desk = desk_of("moshi", layers=4)
    prompts = [tokens(length, seed=length) for length in LENGTHS]
    for number, row in enumerate(run_at_once(desk, mode="fast", prompts=prompts)):
        assert (row.shared, "keeps a window that its masks do not" in row.note) == (1, True)
        desk.open("alone")
        assert row.tokens == desk.run(prompts[number], NEW, "alone").tokens
    desk.close_all()


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "gpt_oss", "gemma4_text:shared", "llama4_text"])
@pytest.mark.parametrize("attention", [None, "eager"])
def test_masks_that_keep_every_window_of_the_cache_are_known(family: str, attention: str | None) -> None:
    forward = desk_of(family, attention=attention).engine.forward
    assert any(layer.window for layer in forward.geometry.layers)
    assert why_not_in_columns(forward) is None
