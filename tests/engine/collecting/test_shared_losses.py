"""Losses in shared passes are the plain model's within rounding; what they are not is found and computed alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from djinn_jupyter.engine.passes import sections
from djinn_jupyter.engine.residency.workspace import Reservation
from djinn_jupyter.engine.system.arrays import to_tensor
from djinn_jupyter.errors import SlabFull, UsageError
from djinn_jupyter.methods.datasets.engine import handlers
from djinn_jupyter.methods.datasets.engine.batches import Batches, NotBatched
from djinn_jupyter.methods.datasets.request import Score
from djinn_jupyter.wire.edits import Scale
from tests.engine.collecting.test_collections import LAYERS
from tests.engine.collecting.test_scores import plain_loss
from tests.engine.desk import Desk, build_desk, desk_of, tokens
from tests.engine.plain import plain_of
from tests.families import build

PROMPTS = tuple(tokens(length, seed=length) for length in (5, 12, 12, 3, 30, 9))


def scored(desk: Desk, **fields: Any) -> Any:
    desk.open("s")
    return desk.ask(Score(session="s", **{"prompts": PROMPTS, "mode": "fast", **fields}))


def test_prompts_of_many_lengths_share_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "LOSS_ROWS", 5)
    desk, model = desk_of("gemma2", layers=LAYERS), plain_of("gemma2", layers=LAYERS)
    expected = torch.cat([plain_loss(model, prompt) for prompt in PROMPTS])
    before = desk.engine.runtime.counters.layers_run
    reply = scored(desk)
    assert (reply.mode, reply.notes, reply.tokens) == ("fast", (), PROMPTS)
    assert reply.largest_difference < 1e-4
    found = to_tensor(reply.values)
    assert torch.allclose(found, expected, rtol=0, atol=1e-4)
    rows = [row.split([len(prompt) - 1 for prompt in PROMPTS]) for row in (found, expected)]
    assert sum(torch.equal(ours, theirs) for ours, theirs in zip(*rows, strict=True)) >= handlers.RECHECKED
    again = desk.engine.runtime.counters.layers_run
    scored(desk)
    assert again > before
    assert desk.engine.runtime.counters.layers_run - again < len(PROMPTS) * LAYERS  # of passes of their own
    assert desk.engine.budget.held()["losses"] == 0
    desk.close_all()


def test_a_batch_that_finds_no_room_is_halved_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    expected, run, take, ran = to_tensor(scored(desk).values), Batches.run, Reservation.take, list[int]()

    def scarce(room: Reservation, size: int) -> Any:
        if size > 40 * 2**20:
            raise SlabFull("no room")
        return (yield from take(room, size))

    monkeypatch.setattr(Batches, "of", lambda self, prompts: iter([list(range(len(prompts)))]))
    monkeypatch.setattr(Batches, "held_bytes", lambda self, rows: rows * 2**20)
    monkeypatch.setattr(Reservation, "take", scarce)
    monkeypatch.setattr(Batches, "run", lambda self, some, *a, **b: ran.append(len(some)) or run(self, some, *a, **b))
    reply = scored(desk)
    assert (reply.mode, reply.notes, ran) == ("fast", (), [3, 1, 1, 1])
    assert torch.allclose(to_tensor(reply.values), expected, rtol=0, atol=1e-4)
    desk.close_all()


def test_losses_that_are_another_prompts_are_found_and_each_is_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_of("llama", layers=LAYERS)
    exact = scored(desk, mode="exact")
    scored(desk)  # the trial has found nothing
    planted = Batches.run

    def rolled(*given: Any, **more: Any) -> Any:
        for found in planted(*given, **more):
            yield None if found is None else {name: rows.roll(1, 0) for name, rows in found.items()}

    monkeypatch.setattr(Batches, "run", rolled)
    reply = scored(desk, first=200)
    assert torch.equal(to_tensor(reply.values), to_tensor(exact.values))
    assert (reply.mode, reply.largest_difference) == ("exact", None)
    said = r"for prompt 20[0-5] \(counted from 0\), computed with others, differed from the same computed alone"
    assert re.search(said, reply.notes[0])
    desk.close_all()


def test_it_is_found_also_where_the_head_gives_some_tokens_minus_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama", layers=LAYERS)

    def never(module: torch.nn.Module, given: Any, logits: Tensor) -> Tensor:
        return logits.index_fill(-1, torch.zeros(1, dtype=torch.long), -torch.inf)

    model.lm_head.register_forward_hook(never)
    desk = build_desk(model)
    assert (scored(desk).mode, scored(desk).notes) == ("fast", ())
    planted = Batches.run

    def rolled(*given: Any, **more: Any) -> Any:
        for found in planted(*given, **more):
            yield None if found is None else {name: rows.roll(1, 0) for name, rows in found.items()}

    monkeypatch.setattr(Batches, "run", rolled)
    assert scored(desk).mode == "exact"
    desk.close_all()


def test_losses_of_a_batch_before_one_that_is_refused_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have not been rechecked, and the reply says that each was computed alone."""
    monkeypatch.setattr(sections, "SECTION_WORK", 1)  # a prompt a batch
    desk = build_desk(build("llama", layers=LAYERS))
    exact = scored(desk, mode="exact")
    scored(desk)
    planted, calls = Batches.run, list[int]()

    def refusing(*given: Any, **more: Any) -> Any:
        calls.append(0)
        if len(calls) > 2:
            raise NotBatched("no row for each token")
        yield from planted(*given, **more)

    monkeypatch.setattr(Batches, "run", refusing)
    reply = scored(desk)
    assert len(calls) == 3
    assert (reply.mode, reply.largest_difference) == ("exact", None)
    assert torch.equal(to_tensor(reply.values), to_tensor(exact.values))
    assert reply.notes == ("Each prompt was computed alone, for no row for each token.",)
    desk.close_all()


def test_where_nothing_can_be_shared_each_is_computed_alone_and_it_says_so() -> None:
    desk = desk_of("llama", layers=LAYERS)
    desk.open("ruled")
    desk.steer("resid_post.1", Scale(factor=0.5), "ruled")
    exact, reply = (scored(desk, rules_of="ruled", mode=mode) for mode in ("exact", "fast"))
    assert torch.equal(to_tensor(reply.values), to_tensor(exact.values))
    assert "passes with steering rules" in reply.notes[0]
    with pytest.raises(UsageError, match="one prompt at a time; leave fast out"):
        scored(desk, what="logits")
    desk.close_all()
    recurrent = desk_of("mamba2", layers=LAYERS)
    reply = scored(recurrent)
    assert (reply.mode, "recurrent" in reply.notes[0]) == ("exact", True)
    recurrent.close_all()


def test_a_prompt_of_one_token_has_no_loss_among_others() -> None:
    desk = desk_of("llama", layers=LAYERS)
    reply = scored(desk, prompts=((3,), *PROMPTS[:2]))
    assert to_tensor(reply.values).shape == (len(PROMPTS[0]) + len(PROMPTS[1]) - 2,)
    desk.close_all()
