"""Other families, attentions and numbers of ranks: the bits of the split, whatever stops or changes a pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.desk import Desk
from tests.engine.parallel.ranked import MIDDLE, NEW, PROMPT, saved, split_desk, whole_desk

pytestmark = [pytest.mark.processes, pytest.mark.slow]
CASES: dict[str, tuple[str, int, int | None, dict[str, Any]]] = {
    "qwen2": ("qwen2", 2, None, {}),
    "qwen3, norms of heads": ("qwen3", 2, None, {}),
    "gemma3, windows": ("gemma3_text", 2, None, {}),
    "gemma2, soft-caps": ("gemma2", 2, None, {}),
    "mistral, a window": ("mistral", 2, None, {}),
    "llama in bfloat16": ("llama", 2, None, {"dtype": "bfloat16"}),
    "llama, eager": ("llama", 2, None, {"attention": "eager"}),
    "llama, four ranks": ("llama", 4, 4, {}),
    "qwen2, four ranks": ("qwen2", 4, 4, {}),
}


@pytest.fixture(scope="class", params=CASES)
def desks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Desk]]:
    family, ranks, heads, options = CASES[request.param]
    model: Path = saved(family, tmp_path_factory.mktemp("model"), heads)
    with split_desk(model, ranks, **options) as desk:
        yield desk, whole_desk(model, **options)


class TestFamily:
    def test_stopped_edited_and_gone_back(self, desks: tuple[Desk, Desk]) -> None:
        desk, whole = desks
        near = {"rtol": 1e-4, "atol": 1e-5} if desk.engine.model.dtype == torch.float32 else {"rtol": 0.1, "atol": 0.1}
        desk.open()
        plain = desk.outcome(desk.run(PROMPT, NEW))
        for described in desk.engine.description.points:
            if not described.layers or MIDDLE not in described.layers:
                continue
            site = f"{described.point}.{MIDDLE}"
            for one in (desk, whole):
                one.open()
                one.stop_at(site, when="step == 1")
                one.run(PROMPT, NEW)
            torch.testing.assert_close(desk.value().float(), whole.value().float(), **near)
            if described.editable:
                desk.edit(positions=(-1,))
                desk.resume()
                desk.back()
            assert desk.outcome(desk.resume()) == plain, site
        desk.close_all()

    def test_a_long_prompt_and_sessions_in_turn(self, desks: tuple[Desk, Desk]) -> None:
        desk, _ = desks
        prompts = [tuple((7 * n + k) % 100 + 3 for n in range(60)) for k in range(2)]
        alone = []
        for prompt in prompts:
            desk.open()
            alone.append(desk.outcome(desk.run(prompt, 12)))
        for name, prompt in zip("ab", prompts, strict=True):
            desk.open(name)
            desk.stop_at(f"resid_post.{MIDDLE}", when="step in (1, 5)", name=name)
            desk.run(prompt, 12, name=name)
        for _ in range(2):
            finished = [desk.resume(name) for name in "ab"]
        assert [desk.outcome(one, name) for one, name in zip(finished, "ab", strict=True)] == alone
        desk.close_all()
