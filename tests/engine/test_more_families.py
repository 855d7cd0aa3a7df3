"""Families beside the fourteen, newer ones first of all: a few in every run, all of them in the slow one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from djinn_jupyter.engine.model.discovery.model_map import discover
from djinn_jupyter.errors import ModelRefused, PromptTooLong
from djinn_jupyter.wire.edits import Scale
from tests.engine.desk import Desk, Outcome, build_desk, tokens
from tests.engine.plain import generate
from tests.engine.variants import two_ropes
from tests.families import (
    FAMILIES,
    LATER,
    MORE,
    MORE_REFUSED,
    build,
    configuration,
    drawn,
    sees_later_tokens,
)

PROMPT = tokens(26)  # longer than every window, chunk and index of the tiny families
NEW = 5
EDIT = Scale(factor=-0.5)  # a norm before the last layer takes away a factor above 0, bit for bit
FEWER = ("qwen3_5_text", "gemma4_text:shared", "glm_moe_dsa:shared", "deepseek_v4")


INDEXED = "indexed_attention"  # in older releases of transformers Qwen 4 has it by another name
QWEN4 = "qwen4_exp_text"
KEEP_STATE = () if QWEN4 not in MORE or INDEXED in configuration(QWEN4).layer_types else (QWEN4,)


def both(name: str) -> tuple[Desk, Outcome]:
    """The engine, and the outcome of the prompt in another copy of the model by itself."""
    desk = build_desk(build(name))
    reference: Any = build(name)
    reference.generation_config = GenerationConfig()  # that of BART forces the last token
    return desk, generate(reference, PROMPT, NEW, **desk.engine.anatomy.keep_last)


def stop_edit_and_go_back(desk: Desk, plain: Outcome, boundary: int, step: int) -> None:
    desk.open("a")
    desk.stop_at(f"resid_post.{boundary - 1}" if boundary else "resid_pre.0", f"step == {step}")
    paused = desk.run(PROMPT, NEW)
    assert (paused.layer, paused.step) == (boundary, step)
    desk.fork("b")
    desk.edit(EDIT, "b")
    branch = desk.outcome(desk.resume("b"), "b")
    assert boundary == desk.layers or not torch.equal(branch.logits, plain.logits), "the edit did nothing"
    desk.edit(EDIT)
    assert desk.outcome(desk.resume()) == branch
    for name in ("a", "b"):
        desk.back(name=name)
        assert desk.outcome(desk.resume(name), name) == plain
    desk.close_all()


@pytest.mark.parametrize("name", FEWER)
def test_a_stop_changes_no_bit(name: str) -> None:
    desk, plain = both(name)
    for boundary, step in ((5, 0), (desk.layers - 1, 2)):
        stop_edit_and_go_back(desk, plain, boundary, step)


SERVED = [name for name in MORE if name not in KEEP_STATE]
BY_TURNS = [(name, False) for name in drawn(SERVED) if isinstance(name, str)]


@pytest.mark.parametrize(
    ("name", "whole"), [*BY_TURNS, *(pytest.param(name, True, marks=pytest.mark.slow) for name in SERVED)]
)
def test_a_stop_at_every_boundary_changes_no_bit(name: str, whole: bool) -> None:
    """The usual run takes the steps by turns."""
    desk, plain = both(name)
    desk.open()
    assert desk.outcome(desk.run(PROMPT, NEW)) == plain
    desk.close_all()
    for boundary in range(desk.layers + 1):
        for step in (0, 1, 3) if whole else ((0, 1, 3)[boundary % 3],):
            stop_edit_and_go_back(desk, plain, boundary, step)


REASONS = {
    "hrm_text": "has no single list of decoder layers",
    "bert:encoder": LATER,
    **dict.fromkeys(KEEP_STATE, "it keeps state of its own on the cache"),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_refusal_gives_the_reason(name: str) -> None:
    with pytest.raises(ModelRefused, match=REASONS[name]):
        build_desk({**MORE, **MORE_REFUSED}[name]())


@pytest.mark.parametrize("name", drawn([*FAMILIES, *MORE]))
def test_a_load_refuses_what_plain_transformers_computes_from_later_tokens(name: str) -> None:
    model = build(name)
    with pytest.raises(ModelRefused, match=LATER) if sees_later_tokens(name) else nullcontext():
        discover(model)


def test_all_positions_go_through_layers_that_share_keys() -> None:
    desk = build_desk(build("gemma4_text:shared"))
    desk.open()
    desk.stop_at("resid_post.7")
    desk.run(PROMPT, 1)
    assert desk.value().shape == (len(PROMPT), 32)


def test_wishes_for_generate_do_not_refuse_a_model() -> None:
    model: Any = build("llama")
    wishes = GenerationConfig(forced_eos_token_id=2, suppress_tokens=list(range(3, 120)), num_beams=2, min_new_tokens=2)
    model.generation_config = wishes
    build_desk(model)
    assert model.generation_config is wishes


def test_a_forward_that_fails_is_refused() -> None:
    """Four heads for keys and two for what is rotated: only running it shows that this does not fit."""
    model: Any = build("llama")
    model.model.layers[3].mlp.up_proj.weight.data = torch.zeros(7, 7)
    with pytest.raises(ModelRefused, match="LlamaForCausalLM cannot be served exactly: its forward does not run"):
        build_desk(model)


@pytest.mark.parametrize("name", ["gpt2", "mamba2"])
def test_a_model_of_one_layer_is_served(name: str) -> None:
    desk = build_desk(build(name, layers=1))
    plain = generate(build(name, layers=1), PROMPT, NEW)
    for boundary in (0, 1):
        stop_edit_and_go_back(desk, plain, boundary, 1)


def test_frequencies_that_change_at_a_length() -> None:
    """Up to the length and beyond it a line is that of `generate`; across it the line is computed anew."""
    desk, short, long = build_desk(two_ropes()), tokens(16), PROMPT
    for prompt, new in ((short, 4), (long, NEW)):
        plain = generate(two_ropes(), prompt, new)
        for boundary, step in ((3, 0), (3, 2)):
            desk.open("a")
            desk.stop_at(f"resid_pre.{boundary}", f"step == {step}")
            desk.run(prompt, new)
            assert desk.outcome(desk.resume()) == plain
            desk.close_all()
    desk.open("a")
    finished = desk.run(short, 12)
    assert (finished.reason, len(finished.tokens)) == ("context", 5)
    assert finished.tokens == generate(two_ropes(), short, 5).tokens
    with pytest.raises(PromptTooLong, match="changes its rotary frequencies at 20 positions"):
        desk.run((5, 6, 7), extend=True)
    line = (*short, *finished.tokens)
    assert desk.outcome(desk.run(line, 4)) == generate(two_ropes(), line, 4)
    desk.close_all()
