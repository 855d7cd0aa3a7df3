"""Prompts that share passes: of one length, of which the last layer computes the last rows alone, in even batches."""

from __future__ import annotations

import pytest

from djinn_jupyter.engine.passes.packing import why_not_in_columns
from djinn_jupyter.engine.session import shared_prompts
from tests.engine.desk import Desk, desk_of, tokens
from tests.engine.session.test_sharing import LENGTHS, NEW, run_at_once

pytestmark = pytest.mark.drawn

LENGTH = 14
PROMPTS = [tokens(LENGTH, seed=seed) for seed in (5, 6, 7)]


@pytest.fixture(autouse=True)
def no_prompt_is_due_to_be_checked(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins behind a trial, and no row is computed again alone."""
    run_at_once(llama, mode="fast", prompts=PROMPTS, new=1)
    llama.close_all()
    monkeypatch.setattr(llama.engine.runtime.sharing.prompts, "_unchecked", -100)


def rows_of_the_last_mlp(desk: Desk, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Run prompts together for one new token; the shapes of what the last layer's MLP got."""
    found: list[tuple[int, ...]] = []
    module = desk.engine.forward.anatomy.layers[-1].mlp
    hook = module.register_forward_pre_hook(lambda module, args: found.append(tuple(args[0].shape[:2])))
    try:
        assert [row.shared for row in run_at_once(desk, mode="fast", prompts=prompts, new=1)] == [1] * len(prompts)
    finally:
        hook.remove()
    return found


def test_of_prompts_of_one_length_the_last_layer_runs_the_last_rows_alone(llama: Desk) -> None:
    assert rows_of_the_last_mlp(llama, PROMPTS) == [(len(PROMPTS), 1)]


def test_of_prompts_of_several_lengths_it_runs_them_whole(llama: Desk) -> None:
    assert rows_of_the_last_mlp(llama, [PROMPTS[0], PROMPTS[1][:9]]) == [(2, LENGTH)]


def test_a_last_batch_is_not_small(llama: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four prompts, of which three would fit: two and two, not three and one."""
    monkeypatch.setattr(llama.engine.runtime.sharing.prompts._sections, "tokens", lambda: 3 * LENGTH)
    prompts = [*PROMPTS, tokens(LENGTH, seed=8)]
    assert rows_of_the_last_mlp(llama, prompts) == [(2, 1), (2, 1)]


@pytest.mark.parametrize(("lengths", "most", "even"), [([16] * 32, 380, 256), ([16] * 3, 380, 48), ([500], 380, 380)])
def test_even_batches(lengths: list[int], most: int, even: int) -> None:
    assert shared_prompts._even(lengths, most) == even


# --- windows ----------------------------------------------------------------------------------------------------------


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
