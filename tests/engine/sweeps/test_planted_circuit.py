"""An induction circuit planted by hand in two layers is what head scores and paths find, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.methods.heads.request import ReadHeads
from djinn_jupyter.methods.sweep.request import Sweep
from tests.engine.desk import Desk, build_desk
from tests.threads import one_thread

TOKENS = 24  # one-hot; as wide as a head
WIDTH, HEADS = 4 * TOKENS, 4
TOKEN, BEFORE, PLACE = (slice(n * TOKENS, (n + 1) * TOKENS) for n in range(3))  # parts of the residual
HELPER, INDUCTION = (0, 1), (1, 2)  # (layer, head)
SHARP = 40.0
FIRST, SECOND, OTHER = 7, 3, 15
LINE = (5, FIRST, SECOND, 11, 2, 9, FIRST)
TWIN = (5, OTHER, SECOND, 11, 2, 9, FIRST)  # here SECOND follows another token


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with one_thread():
        yield build_desk(_planted())


def _planted() -> Any:
    """A GPT-2 of two layers whose MLPs add next to nothing: head 0.1 writes which token came before, head 1.2 looks for
    the present token there and says the token at that place."""
    config = GPT2Config(vocab_size=TOKENS, n_positions=TOKENS, n_embd=WIDTH, n_layer=2, n_head=HEADS, n_inner=8)
    torch.manual_seed(3)
    model: Any = GPT2LMHeadModel(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(1e-3)
    core, unit = model.transformer, torch.eye(TOKENS)
    core.wte.weight[:, TOKEN] += unit
    core.wpe.weight[:, PLACE] += unit
    for norm in (core.ln_f, *(norm for layer in core.h for norm in (layer.ln_1, layer.ln_2))):
        norm.weight.fill_(1.0)
    _plant(core.h[0].attn, HELPER[1], queries=PLACE, keys=PLACE, shift=1, writes=BEFORE)
    _plant(core.h[1].attn, INDUCTION[1], queries=TOKEN, keys=BEFORE, shift=0, writes=TOKEN)
    return model


def _plant(attention: Any, head: int, *, queries: slice, keys: slice, shift: int, writes: slice) -> None:
    """Have a head attend where a key's part equals the query's, `shift` places further, and write the token there."""
    q, k, v = (slice(n * WIDTH + head * TOKENS, n * WIDTH + (head + 1) * TOKENS) for n in range(3))
    weight, unit = attention.c_attn.weight, torch.eye(TOKENS)
    weight[queries, q] += unit.roll(-shift, 1) * SHARP if shift else unit * SHARP
    weight[keys, k] += unit
    weight[TOKEN, v] += unit
    attention.c_proj.weight[head * TOKENS : (head + 1) * TOKENS, writes] += unit * 2


def test_the_planted_line_is_continued_by_induction(desk: Desk) -> None:
    desk.open("b")
    desk.run(LINE, 0, "b")
    assert int(desk.logits("b").argmax()) == SECOND


def test_head_scores_find_both_heads(desk: Desk) -> None:
    desk.open("a")
    draw = torch.Generator().manual_seed(1)
    line = tuple(torch.randperm(TOKENS, generator=draw)[:10].tolist()) * 2
    previous, _, induction = to_tensor(desk.ask(ReadHeads(session="a", lines=(line,))).scores)
    assert _place(previous) == HELPER
    assert previous[HELPER] > 0.9 > 3 * torch.cat([previous.flatten()[:1], previous.flatten()[2:]]).max()
    assert _place(induction) == INDUCTION
    assert induction[INDUCTION] > 0.9


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_one_path_of_all_carries_it_to_the_induction_heads_keys(desk: Desk, mode: Any) -> None:
    changes = {part: _change(desk, mode, f"{part}.1[2]") for part in "qkv"}
    assert _place(changes["k"].abs()) == HELPER
    rest = changes["k"].abs().flatten()
    rest[HELPER[0] * HEADS + HELPER[1]] = 0
    assert changes["k"][HELPER] < -0.5
    assert rest.max() < 0.05
    assert changes["q"].abs().max() < 0.05
    assert changes["v"].abs().max() < 0.05
    assert _place(_change(desk, mode, "logits").abs()) == INDUCTION


def _change(desk: Desk, mode: Any, receiver: str) -> torch.Tensor:
    desk.open("a")
    reply = desk.ask(
        Sweep(
            session="a",
            clean=LINE,
            corrupted=TWIN,
            into="clean",
            site="z",
            over=("layer", "head"),
            metrics=(f"logit({SECOND}) - logit({OTHER})",),
            receivers=(receiver,),
            mode=mode,
        )
    )
    assert reply.mode == mode
    [measured] = reply.measured
    return to_tensor(measured.values) - measured.clean


def _place(scores: torch.Tensor) -> tuple[int, int]:
    layer, head = divmod(int(scores.argmax()), HEADS)
    return layer, head
