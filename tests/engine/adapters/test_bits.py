"""A session with an adapter computes as PEFT does, bit for bit, and every other session as the model alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from djinn_jupyter.wire import requests as ask
from djinn_jupyter.wire.edits import PatchFrom
from tests import adapters
from tests.engine.adapters.adapting import ENDS, add, drawn, let_go, use
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.memory.weights.streaming import streamed_desk
from tests.engine.plain import generate, plain_of
from tests.families import build

PROMPT, NEW = tokens(14, seed=3), 5


@pytest.fixture
def desk(llama: Desk) -> Iterator[Desk]:
    yield llama
    llama.close_all()
    let_go(llama)


@pytest.mark.parametrize("family", ENDS)
def test_a_session_with_an_adapter_is_pefts_forward_and_others_the_models_own(family: str, tmp_path: Path) -> None:
    desk = desk_of(family)
    tensors = drawn(desk, family)
    add(desk, adapters.saved(tmp_path, tensors))
    use(desk, "tuned")
    tuned = desk.outcome(desk.run(PROMPT, NEW, name="tuned"), "tuned")
    desk.open("base")
    base = desk.outcome(desk.run(PROMPT, NEW, name="base"), "base")
    desk.close_all()
    let_go(desk)
    plain = generate(plain_of(family), PROMPT, NEW)
    assert base == plain
    assert tuned == generate(adapters.adapted(build(family), tensors), PROMPT, NEW)
    assert tuned.tokens != plain.tokens


def test_in_bfloat16_the_product_is_computed_in_fp32_as_in_peft(tmp_path: Path) -> None:
    desk = build_desk(build("llama").to(torch.bfloat16))
    tensors = drawn(desk)
    add(desk, adapters.saved(tmp_path, tensors))
    use(desk, "tuned")
    tuned = desk.outcome(desk.run(PROMPT, NEW, name="tuned"), "tuned")
    assert tuned == generate(adapters.adapted(build("llama").to(torch.bfloat16), tensors), PROMPT, NEW)


def test_rslora_and_patterns_scale_as_in_peft(desk: Desk, tmp_path: Path) -> None:
    tensors = adapters.drawn(desk.engine.model, ("q_proj",))
    add(desk, adapters.saved(tmp_path, tensors, use_rslora=True, alpha_pattern={"q_proj": 10}))
    use(desk, "tuned")
    tuned = desk.outcome(desk.run(PROMPT, NEW, name="tuned"), "tuned")
    assert tuned == generate(adapters.adapted(build("llama"), tensors, 10 / 4**0.5), PROMPT, NEW)


def test_two_runs_of_both_kinds_in_turn_keep_their_bits(desk: Desk, tmp_path: Path) -> None:
    """Each pass of one comes between two of the other."""
    tensors = drawn(desk)
    add(desk, adapters.saved(tmp_path, tensors))
    use(desk, "tuned")
    desk.open("base")
    replies: list[Any] = []
    for name in ("tuned", "base"):
        desk.post(ask.Run(session=name, tokens=PROMPT, max_new_tokens=12, ignore_eos=True), replies)
    while len(replies) < 2:
        desk.engine.tick()
    assert desk.logits("base").equal(generate(plain_of("llama"), PROMPT, 12).logits)
    assert desk.logits("tuned").equal(generate(adapters.adapted(build("llama"), tensors), PROMPT, 12).logits)


@pytest.mark.parametrize("site", ["resid_post.1", "q.2", "mlp_post.4"])
def test_a_stop_changes_no_bit(desk: Desk, tmp_path: Path, site: str) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    use(desk, "stopped")
    use(desk, "straight")
    straight = desk.outcome(desk.run(PROMPT, NEW, name="straight"), "straight")
    desk.stop_at(site, name="stopped")
    desk.run(PROMPT, NEW, name="stopped")
    first = desk.value(name="stopped")
    for _ in range(NEW - 1):
        desk.resume("stopped")
    desk.back(NEW - 1, name="stopped")
    assert torch.equal(desk.value(name="stopped"), first)
    assert desk.outcome(desk.resume("stopped", free=True), "stopped") == straight


def test_a_value_of_the_fine_tuned_session_is_patched_into_the_base(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    use(desk, "tuned")
    desk.open("base")
    last = f"resid_post.{desk.layers - 1}"
    for name in ("tuned", "base"):
        desk.stop_at(last, name=name)
        desk.run(PROMPT, 1, name=name)
    before = desk.value(name="base")
    desk.edit(PatchFrom(session="tuned"), "base")
    assert not torch.equal(desk.value(name="base"), before)
    assert torch.equal(desk.value(name="base"), desk.value(name="tuned"))
    for name in ("tuned", "base"):
        desk.resume(name, free=True)
    assert torch.equal(desk.logits("base"), desk.logits("tuned"))


def test_a_fork_keeps_the_adapter_and_goes_on_from_its_rows(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    use(desk, "tuned")
    use(desk, "straight")
    desk.run(PROMPT, 2, name="tuned")
    desk.fork("child", "tuned")
    assert desk.describe("child").adapter == "sql"
    desk.run(PROMPT, 6, name="straight")
    desk.ask(ask.Run(session="child", tokens=(), extend=True, max_new_tokens=4, ignore_eos=True))
    assert torch.equal(desk.logits("child"), desk.logits("straight"))
    assert desk.session("child").tokens == desk.session("straight").tokens


def test_a_session_that_was_swapped_out_goes_on_with_the_same_bits(desk: Desk, tmp_path: Path) -> None:
    add(desk, adapters.saved(tmp_path, drawn(desk)))
    use(desk, "away")
    use(desk, "straight")
    straight = desk.outcome(desk.run(PROMPT, NEW, name="straight"), "straight")
    desk.stop_at("resid_post.2", name="away")
    desk.run(PROMPT, NEW, name="away")
    desk.swap_out("away")
    assert desk.outcome(desk.resume("away", free=True), "away") == straight


def test_streamed_weights_compute_the_same(desk: Desk, tmp_path: Path) -> None:
    tensors = drawn(desk)
    streamed = streamed_desk("llama")
    add(streamed, adapters.saved(tmp_path, tensors))
    use(streamed, "tuned")
    tuned = streamed.outcome(streamed.run(PROMPT, NEW, name="tuned"), "tuned")
    assert tuned == generate(adapters.adapted(build("llama"), tensors), PROMPT, NEW)
    streamed.close_all()
    let_go(streamed)
