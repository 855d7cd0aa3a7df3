"""The bytes that a layer's call keeps between its sections are in the budget, whatever shares the pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.engine.passes.sections import SectionedCall
from djinn_jupyter.methods.datasets.request import Collect, Score
from djinn_jupyter.wire import requests as ask
from tests.engine.desk import Desk, build_desk, tokens
from tests.families import build

LAYERS, WIDER = 2, 64
PROMPTS = tuple(tokens(9, seed=seed) for seed in range(4))


@functools.cache
def wide_desk() -> Desk:
    """Return a desk whose layers keep more than a fixed share of the hidden size foresees: their MLPs are wide."""
    model: Any = build("llama", layers=LAYERS)
    for layer in model.model.layers:
        width = layer.mlp.up_proj.in_features
        layer.mlp.gate_proj, layer.mlp.up_proj = (torch.nn.Linear(width, WIDER * width, bias=False) for _ in range(2))
        layer.mlp.down_proj = torch.nn.Linear(WIDER * width, width, bias=False)
    return build_desk(model.requires_grad_(False))


def collect(desk: Desk, folder: Path) -> None:
    given = {"sites": (f"resid_post.{LAYERS - 1}",), "positions": (-1,), "folder": str(folder), "mode": "fast"}
    desk.open("c")
    desk.ask(Collect(session="c", prompts=PROMPTS, shard=0, first=0, last=True, dtype=None, seed=0, **given))
    desk.close("c")


def score(desk: Desk, folder: Path) -> None:
    desk.open("l")
    assert desk.ask(Score(session="l", prompts=PROMPTS, mode="fast")).mode == "fast"
    desk.close("l")


def run(desk: Desk, folder: Path) -> None:
    names, replies = [desk.open(f"r{number}") for number in range(len(PROMPTS))], list[Any]()
    for name, prompt in zip(names, PROMPTS, strict=True):
        desk.post(ask.Run(session=name, tokens=prompt, max_new_tokens=1, ignore_eos=True, mode="fast"), replies)
    desk.settle()
    assert [reply.shared for reply in replies] == [1] * len(PROMPTS)
    desk.close(*names)


@pytest.mark.parametrize(("part", "work"), [("collections", collect), ("losses", score), ("shared passes", run)])
def test_what_a_call_keeps_between_its_sections_is_in_the_budget(
    part: str, work: Callable[[Desk, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, step = wide_desk(), SectionedCall._stepped
    kept: list[tuple[int, int]] = []

    def stepped(self: SectionedCall, *args: Any, **kwargs: Any) -> Any:
        output = step(self, *args, **kwargs)
        kept.append((self.nbytes, desk.engine.budget.held()[part]))
        return output

    work(desk, tmp_path / "tried")
    monkeypatch.setattr(SectionedCall, "_stepped", stepped)
    work(desk, tmp_path / "counted")
    assert all(nbytes <= held for nbytes, held in kept)
    assert max(nbytes for nbytes, _ in kept) > 0
    assert desk.engine.budget.held()[part] == 0
    desk.close_all()
