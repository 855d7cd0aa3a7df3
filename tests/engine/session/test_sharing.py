"""Runs that share passes, in families of other kinds: lines past a sliding window, distances as biases, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, desk_of, tokens

LENGTHS, NEW = (3, 14, 8), 30


def run_at_once(desk: Desk, *, mode: Any, prompts: list[tuple[int, ...]]) -> list[Any]:
    """Run these prompts greedily at once; the replies in their order."""
    replies: list[Any] = []
    for number, prompt in enumerate(prompts):
        desk.open(f"s{number}")
        run = ask.Run(session=f"s{number}", tokens=prompt, max_new_tokens=NEW, ignore_eos=True, mode=mode)
        desk.post(run, replies)
    while len(replies) < len(prompts):
        desk.engine.tick()
    return sorted(replies, key=lambda reply: reply.session)


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text", "bloom", "mistral", "gpt_oss"])
def test_lines_of_other_lengths_share_passes_and_stay_what_they_are_alone(family: str) -> None:
    desk = desk_of(family)
    prompts = [tokens(length, seed=length) for length in LENGTHS]
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    logits = [desk.logits(row.session) for row in rows]
    assert min(row.shared for row in rows) >= NEW - 2 * desk.layers  # the others begin while the first prompt runs
    assert all(row.note is None for row in rows)
    for number, row in enumerate(rows):
        desk.open("alone")
        alone = desk.run(prompts[number], NEW, "alone")
        assert row.tokens == alone.tokens
        assert torch.allclose(logits[number], desk.logits("alone"), rtol=0, atol=1e-4)
    desk.close_all()


@pytest.mark.parametrize(
    ("family", "why"), [("mamba", "recurrent states"), ("gemma3n_text", "pass on more than the hidden state")]
)
def test_a_family_whose_lines_cannot_share_a_pass_runs_them_alone_and_says_so(family: str, why: str) -> None:
    desk = desk_of(family)
    prompts = [tokens(length, seed=length) for length in LENGTHS[:2]]
    rows = run_at_once(desk, mode="fast", prompts=prompts)
    for number, row in enumerate(rows):
        assert (row.shared, why in row.note) == (0, True)
        desk.open("alone")
        assert desk.outcome(row, row.session) == desk.outcome(desk.run(prompts[number], NEW, "alone"), "alone")
    desk.close_all()


def test_an_exact_run_shares_no_pass(llama: Desk) -> None:
    rows = run_at_once(llama, mode="exact", prompts=[tokens(5), tokens(6)])
    assert [(row.shared, row.note) for row in rows] == [(0, None), (0, None)]
